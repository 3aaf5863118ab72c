//! Python literals, as written by `repr`: the questions in LooGLE's files, and the answers to its
//! clozes.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Number, Value};

/// Largest nesting depth of a literal.
const DEPTH: usize = 50;

/// Parses a literal: text, number, True, False, None, or a dict, list or tuple of these. Tuples
/// become lists, and entries of dicts whose keys are not text are omitted. Returns `None` for
/// anything else.
pub(crate) fn literal(text: &str) -> Option<Value> {
    let text = text.trim_start_matches([' ', '\t']);
    let begins = text.trim_start();
    // A line that begins with blanks is indented, which Python refuses.
    if text[..text.len() - begins.len()].ends_with([' ', '\t']) {
        return None;
    }
    let mut rest = LiteralParser(begins.chars().peekable());
    let value = rest.value(DEPTH)?;
    rest.skip_blanks();
    rest.0.next().is_none().then_some(value)
}

struct LiteralParser<'a>(Peekable<Chars<'a>>);

impl LiteralParser<'_> {
    fn take_if(&mut self, c: char) -> bool {
        self.0.next_if_eq(&c).is_some()
    }

    /// Skips blanks, line breaks and comments.
    fn skip_blanks(&mut self) {
        while let Some(c) = self.0.next_if(|c| " \t\n\r\x0c#".contains(*c)) {
            if c == '#' {
                while self.0.next_if(|c| *c != '\n').is_some() {}
            }
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.skip_blanks();
        match self.0.peek()? {
            '\'' | '"' => self.texts().map(Value::String),
            '{' => self.dict(depth),
            '[' => {
                self.0.next();
                self.items(']', depth).map(|(items, _)| Value::Array(items))
            }
            '(' => {
                self.0.next();
                let (mut items, comma) = self.items(')', depth)?;
                // Parentheses around one value do not make a tuple.
                Some(if items.len() == 1 && !comma { items.remove(0) } else { Value::Array(items) })
            }
            _ => self.word(),
        }
    }

    /// Parses values up to a bracket; returns them, and true if a comma ends them.
    fn items(&mut self, end: char, depth: usize) -> Option<(Vec<Value>, bool)> {
        let (mut items, mut comma) = (Vec::new(), false);
        loop {
            self.skip_blanks();
            if self.take_if(end) {
                return Some((items, comma));
            }
            if !items.is_empty() && !comma {
                return None;
            }
            items.push(self.value(depth)?);
            self.skip_blanks();
            comma = self.take_if(',');
        }
    }

    fn dict(&mut self, depth: usize) -> Option<Value> {
        self.0.next();
        let (mut entries, mut more) = (Map::new(), true);
        loop {
            self.skip_blanks();
            if self.take_if('}') {
                return Some(Value::Object(entries));
            }
            if !more {
                return None;
            }
            // Python refuses lists and dicts as keys.
            if matches!(self.0.peek(), Some('[' | '{')) {
                return None;
            }
            let key = self.value(depth)?;
            self.skip_blanks();
            if !self.take_if(':') {
                return None;
            }
            let value = self.value(depth)?;
            if let Value::String(key) = key {
                entries.insert(key, value);
            }
            self.skip_blanks();
            more = self.take_if(',');
        }
    }

    /// Parses a number or a name.
    fn word(&mut self) -> Option<Value> {
        let mut word = String::new();
        while let Some(c) = self.0.next_if(|c| c.is_ascii_alphanumeric() || "+-._".contains(*c)) {
            word.push(c);
        }
        match word.as_str() {
            "None" => Some(Value::Null),
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            number if number.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) => {
                let whole = number.parse::<i64>().map(Number::from).ok();
                whole.or_else(|| Number::from_f64(number.parse().ok()?)).map(Value::Number)
            }
            _ => None,
        }
    }

    /// Parses texts, and joins adjacent ones.
    fn texts(&mut self) -> Option<String> {
        let mut text = String::new();
        while let Some(quote) = self.0.next_if(|c| matches!(c, '\'' | '"')) {
            text += &self.text(quote)?;
            self.skip_blanks();
        }
        Some(text)
    }

    /// Parses a text after its first quote.
    fn text(&mut self, quote: char) -> Option<String> {
        let mut long = false;
        if self.take_if(quote) {
            if !self.take_if(quote) {
                return Some(String::new());
            }
            long = true;
        }
        let mut text = String::new();
        loop {
            match self.0.next()? {
                '\\' => text.extend(self.escaped()?),
                '\n' if !long => return None,
                c if c != quote => text.push(c),
                _ if !long => return Some(text),
                _ => {
                    let mut quotes = 1;
                    while quotes < 3 && self.take_if(quote) {
                        quotes += 1;
                    }
                    if quotes == 3 {
                        return Some(text);
                    }
                    text.extend(std::iter::repeat_n(quote, quotes));
                }
            }
        }
    }

    /// Parses the rest of an escape after the backslash; the backslash of an unknown escape
    /// remains.
    fn escaped(&mut self) -> Option<Vec<char>> {
        let c = self.0.next()?;
        let code = |code| char::from_u32(code).map(|c| vec![c]);
        match c {
            '\n' => Some(Vec::new()),
            '\\' | '\'' | '"' => Some(vec![c]),
            'a' => code(7),
            'b' => code(8),
            't' => code(9),
            'n' => code(10),
            'v' => code(11),
            'f' => code(12),
            'r' => code(13),
            'x' => code(self.digits(16, 2, 2)?),
            'u' => code(self.digits(16, 4, 4)?),
            'U' => code(self.digits(16, 8, 8)?),
            '0'..='7' => {
                let first = c.to_digit(8)?;
                let rest = self.0.clone().take(2).take_while(|c| c.is_digit(8)).count();
                code(first * 8_u32.pow(rest as u32) + self.digits(8, rest, rest)?)
            }
            // Escapes with the name of a character are not supported.
            'N' => None,
            _ => Some(vec!['\\', c]),
        }
    }

    fn digits(&mut self, radix: u32, least: usize, most: usize) -> Option<u32> {
        let (mut number, mut count) = (0_u32, 0);
        while count < most
            && let Some(c) = self.0.next_if(|c| c.is_digit(radix))
        {
            number = number.checked_mul(radix)? + c.to_digit(radix)?;
            count += 1;
        }
        (count >= least).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_of_repr_are_parsed() {
        for (text, value) in [
            (
                "[{'Q': 'It\\'s <mask-0>', \"A\": \"it's\"}, 'none']",
                json!([{ "Q": "It's <mask-0>", "A": "it's" }, "none"]),
            ),
            (
                "{'a': (1, -2.5, None), 'b': True, 3: 'c',}",
                json!({ "a": [1, -2.5, null], "b": true }),
            ),
            ("'tab\\t \\x41\\u00fc\\U0001F600 \\101\\0 \\d'", json!("tab\t Aü😀 A\0 \\d")),
            ("'one ' \"two\"", json!("one two")),
            ("'''a 'quote''' ", json!("a 'quote")),
            ("  ('a')\n# told\n", json!("a")),
            ("\n\n[]", json!([])),
            ("('a',)", json!(["a"])),
        ] {
            assert_eq!(literal(text), Some(value), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "none",
            "null",
            "'a",
            "'a\nb'",
            "{'a'}",
            "{'a': }",
            "{'a': 1 'b': 2}",
            "['a' , , ]",
            "[,]",
            "{,}",
            "{[]: 1}",
            "'a' b",
            "\n 'a'",
            "'\\x4'",
            "'\\N{DASH}'",
            "1 + 1",
            "open('a')",
            "[1",
            "{'a': 1}.",
            "--1",
        ] {
            assert_eq!(literal(text), None, "{text}");
        }
        assert_eq!(literal(&"[".repeat(100_000)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn no_text_causes_a_panic(text in "[\\[\\]{}()'\"\\\\:, xuN07a\n#-]{0,40}") {
            let _ = literal(&text);
        }
    }
}
