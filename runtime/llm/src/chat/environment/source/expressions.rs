//! Parser for the expressions of a tag by jinja2's grammar, which collects the edits they need.

use std::ops::Range;

use super::super::{methods, operators};
use super::tokens::Token;

/// Levels of nesting after which a tag is not rewritten: minijinja refuses it itself.
const DEEPEST: usize = 200;

/// A recursive descent over the tokens of a tag. It collects insertions and replacements, and
/// leaves what it does not understand to minijinja, which refuses it.
pub(super) struct Rewriter<'t> {
    tokens: &'t [Token<'t>],
    place: usize,
    depth: usize,
    /// Replacements of byte ranges.
    edits: Vec<(Range<usize>, String)>,
}

impl<'t> Rewriter<'t> {
    pub(super) fn new(tokens: &'t [Token<'t>]) -> Self {
        Self { tokens, place: 0, depth: 0, edits: Vec::new() }
    }

    /// Parses and rewrites the beginning of a statement, up to its expressions.
    pub(super) fn rewrite_statement(&mut self) {
        let is_alone = self.tokens.len() == 1;
        match self.text() {
            "for" => self.loop_list(),
            "set" => self.assignment(),
            // These tags mark the assistant's text for training, and have a scope.
            "generation" if is_alone => self.replace(0, "with"),
            "endgeneration" if is_alone => self.replace(0, "endwith"),
            // This is a statement of minijinja that jinja2 lacks.
            "do" => self.replace(0, "unknown"),
            _ => (),
        }
        self.place = self.place.max(1);
    }

    pub(super) fn rewrite_expressions(&mut self) {
        while self.place < self.tokens.len() {
            let before = self.place;
            self.expression();
            if self.place == before {
                self.place += 1;
            }
        }
    }

    /// Applies the edits to the text of the tag.
    pub(super) fn apply(mut self, tag: &str) -> String {
        // Insertions at one byte keep their order.
        self.edits.sort_by_key(|(range, _)| range.start);
        let mut text = String::with_capacity(tag.len());
        let mut copied = 0;
        for (range, replacement) in &self.edits {
            text.push_str(&tag[copied..range.start]);
            text.push_str(replacement);
            copied = range.end;
        }
        text.push_str(&tag[copied..]);
        text
    }

    /// Wraps the list of `for target in list`.
    fn loop_list(&mut self) {
        let mut depth = 0_usize;
        while self.place < self.tokens.len() {
            match self.text() {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                "in" if depth == 0 => break,
                _ => (),
            }
            self.place += 1;
        }
        self.place += 1;
        let first = self.place;
        self.or_expression();
        let is_tuple = self.text() == ",";
        if self.place > first && !is_tuple {
            self.open(first, operators::LOOP_LIST);
            self.close();
        }
    }

    /// Skips the targets of `set`, or a whole `set` block. The sandbox refuses names of attributes
    /// that begin with an underscore.
    fn assignment(&mut self) {
        let names: Vec<&str> = self.tokens.iter().map(|token| token.text).take(4).collect();
        let is_refused = matches!(names[..], [_, _, ".", name] if name.starts_with('_'));
        while self.place < self.tokens.len() && !self.accept("=") {
            self.place += 1;
        }
        if is_refused && self.place < self.tokens.len() {
            let first = self.place;
            self.expression();
            self.open(first, operators::REFUSE_NAME);
            self.close();
        }
    }

    fn text(&self) -> &'t str {
        self.tokens.get(self.place).map_or("", |token| token.text)
    }

    fn next_text(&self) -> &'t str {
        self.tokens.get(self.place + 1).map_or("", |token| token.text)
    }

    fn accept(&mut self, text: &str) -> bool {
        let found = self.text() == text;
        self.place += usize::from(found);
        found
    }

    /// Inserts the name of a function and a parenthesis before a token. If several expressions
    /// begin at the same token, a later insertion encloses the earlier ones and is placed before
    /// them.
    fn open(&mut self, first: usize, function: &str) {
        let start = self.tokens[first].start;
        let place = self.edits.iter().position(|(range, _)| range.start == start);
        let edit = (start..start, format!("{function}("));
        self.edits.insert(place.unwrap_or(self.edits.len()), edit);
    }

    /// Inserts a closing parenthesis after the last token.
    fn close(&mut self) {
        let last = self.tokens[self.place - 1];
        let end = last.start + last.text.len();
        self.edits.push((end..end, ")".to_owned()));
    }

    fn replace(&mut self, token: usize, text: &str) {
        let token = self.tokens[token];
        self.edits.push((token.start..token.start + token.text.len(), text.to_owned()));
    }

    fn expression(&mut self) {
        if self.depth >= DEEPEST {
            return;
        }
        self.depth += 1;
        self.or_expression();
        while self.accept("if") {
            self.or_expression();
            if self.accept("else") {
                self.expression();
            }
        }
        self.depth -= 1;
    }

    fn or_expression(&mut self) {
        self.not_expression();
        while self.accept("or") || self.accept("and") {
            self.not_expression();
        }
    }

    fn not_expression(&mut self) {
        while self.accept("not") {}
        self.comparison();
    }

    /// Rewrites a single comparison. Chained comparisons are left to minijinja.
    fn comparison(&mut self) {
        let first = self.place;
        self.sum();
        let mut operators = Vec::new();
        loop {
            let operator = self.place;
            let function = match (self.text(), self.next_text()) {
                ("<", _) => Some(operators::LESS),
                ("<=", _) => Some(operators::LESS_OR_EQUAL),
                (">", _) => Some(operators::GREATER),
                (">=", _) => Some(operators::GREATER_OR_EQUAL),
                ("in", _) => Some(operators::IN),
                ("not", "in") => Some(operators::NOT_IN),
                ("==" | "!=", _) => None,
                _ => break,
            };
            let tokens = 1 + usize::from(function == Some(operators::NOT_IN));
            self.place += tokens;
            let second = self.place;
            self.sum();
            if self.place == second {
                return;
            }
            operators.push((operator, tokens, function));
        }
        if let [(operator, tokens, Some(function))] = operators[..] {
            self.open(first, function);
            self.replace(operator, ",");
            if tokens == 2 {
                self.replace(operator + 1, "");
            }
            self.close();
        }
    }

    fn sum(&mut self) {
        self.concatenation();
        while matches!(self.text(), "+" | "-") {
            self.place += 1;
            self.concatenation();
        }
    }

    fn concatenation(&mut self) {
        let first = self.place;
        self.product();
        if self.text() != "~" || self.place == first {
            return;
        }
        self.open(first, operators::CONCATENATE);
        while self.text() == "~" {
            self.replace(self.place, ",");
            self.place += 1;
            self.product();
        }
        self.close();
    }

    fn product(&mut self) {
        let first = self.place;
        self.power();
        while matches!(self.text(), "*" | "/" | "//" | "%") && self.place > first {
            let is_remainder = self.text() == "%";
            if is_remainder {
                self.replace(self.place, ",");
            }
            self.place += 1;
            self.power();
            if is_remainder {
                self.open(first, operators::REMAINDER);
                self.close();
            }
        }
    }

    fn power(&mut self) {
        self.unary();
        while self.accept("**") {
            self.unary();
        }
    }

    fn unary(&mut self) {
        while matches!(self.text(), "-" | "+") {
            if self.text() == "+" {
                self.replace(self.place, " ");
            }
            self.place += 1;
        }
        self.postfix();
    }

    fn postfix(&mut self) {
        let first = self.place;
        if !self.primary() {
            return;
        }
        loop {
            match self.text() {
                "." => self.attribute(first),
                "[" | "(" => self.brackets(),
                "|" => self.filter(),
                "is" => self.test(),
                _ => return,
            }
        }
    }

    /// Rewrites `value.name` if `name` may be a method that is not called.
    fn attribute(&mut self, first: usize) {
        let name = self.next_text();
        let is_called = self.tokens.get(self.place + 2).is_some_and(|token| token.text == "(");
        if methods::OF_MAPPINGS.contains(&name) && !is_called {
            self.open(first, operators::ATTRIBUTE);
            self.replace(self.place, ",");
            self.replace(self.place + 1, &format!("'{name}'"));
            self.place += 2;
            self.close();
        } else {
            self.place = (self.place + 2).min(self.tokens.len());
        }
    }

    fn filter(&mut self) {
        self.place = (self.place + 2).min(self.tokens.len());
        if self.text() == "(" {
            self.brackets();
        }
    }

    /// Reads `is [not] name` with its argument.
    fn test(&mut self) {
        self.place += 1;
        self.accept("not");
        self.place = (self.place + 1).min(self.tokens.len());
        let Some(next) = self.tokens.get(self.place) else { return };
        let is_argument = match next.text {
            "(" | "[" | "{" => true,
            "else" | "or" | "and" | "is" | "if" | "in" | "not" | "recursive" => false,
            _ => next.is_name() || next.is_string() || next.is_number(),
        };
        if next.text == "(" {
            self.brackets();
        } else if is_argument {
            self.primary();
            while matches!(self.text(), "." | "[" | "(") {
                if self.text() == "." {
                    self.place = (self.place + 2).min(self.tokens.len());
                } else {
                    self.brackets();
                }
            }
        }
    }

    fn primary(&mut self) -> bool {
        let Some(token) = self.tokens.get(self.place) else { return false };
        match token.text {
            "(" | "[" | "{" => self.brackets(),
            "else" | "if" | "in" | "is" | "or" | "and" | "recursive" => return false,
            _ if token.is_string() => {
                while self.tokens.get(self.place).is_some_and(Token::is_string) {
                    self.place += 1;
                }
            }
            _ if token.is_name() || token.is_number() => self.place += 1,
            _ => return false,
        }
        true
    }

    /// Reads brackets and the expressions in them, between commas, colons and `=`.
    fn brackets(&mut self) {
        let end = match self.text() {
            "(" => ")",
            "[" => "]",
            _ => "}",
        };
        self.place += 1;
        while self.place < self.tokens.len() && !self.accept(end) {
            let before = self.place;
            self.expression();
            if self.place == before {
                self.place += 1;
            }
        }
    }
}
