//! Rewriting of a template's source where minijinja's syntax or operators differ from jinja2's.
//!
//! Operators on which Python and minijinja differ become calls of functions in
//! [`operators`](super::operators): `a % b`, `a ~ b`, single comparisons, `x.items` without a call,
//! and the list of a `for` loop.

mod expressions;
mod tokens;

use expressions::Rewriter;
use tokens::tokenize;

/// Rewrites a whole template.
pub(in crate::chat) fn rewrite(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut rewritten = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = find_opening(rest) {
        let (before, opened) = rest.split_at(start);
        rewritten.push_str(before);
        let (tag, behind) = match &opened[..2] {
            "{#" => split_behind(opened, "#}"),
            "{{" => split_tag(opened, "}}"),
            _ if starts_raw(opened) => split_raw(opened),
            _ => split_tag(opened, "%}"),
        };
        let is_closed = tag.len() >= 4 && (tag.ends_with("}}") || tag.ends_with("%}"));
        if !is_closed || starts_raw(tag) {
            rewritten.push_str(tag);
        } else {
            rewritten.push_str(&rewrite_tag(tag));
        }
        rest = behind;
    }
    rewritten.push_str(rest);
    rewritten
}

/// Returns the byte at which the first tag or comment begins.
fn find_opening(text: &str) -> Option<usize> {
    text.match_indices('{')
        .map(|(place, _)| place)
        .find(|place| text[place + 1..].starts_with(['{', '%', '#']))
}

fn split_behind<'t>(text: &'t str, end: &str) -> (&'t str, &'t str) {
    text.split_at(text.find(end).map_or(text.len(), |place| place + end.len()))
}

/// Splits a text after the end of a tag. An end inside brackets or a string does not count.
fn split_tag<'t>(text: &'t str, end: &str) -> (&'t str, &'t str) {
    let mut depth = 0_usize;
    let mut place = 2;
    while place < text.len() {
        let rest = &text[place..];
        if depth == 0 && rest.starts_with(end) {
            return text.split_at(place + end.len());
        }
        let token = tokens::read(rest);
        match &rest[..token] {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => (),
        }
        place += token;
    }
    (text, "")
}

/// Returns the name of a `{% ... %}` tag, and the text after it.
fn split_name(tag: &str) -> (&str, &str) {
    let text = tag[2..].trim_start_matches(['-', '+']).trim_start();
    text.split_at(text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len()))
}

fn starts_raw(tag: &str) -> bool {
    tag.starts_with("{%") && split_name(tag).0 == "raw"
}

/// Splits a text after `{% endraw %}`.
fn split_raw(text: &str) -> (&str, &str) {
    let ends = text.match_indices("{%").skip(1);
    let mut ends = ends.filter(|(place, _)| split_name(&text[*place..]).0 == "endraw");
    let end = ends.next().and_then(|(place, _)| Some(place + text[place..].find("%}")? + 2));
    text.split_at(end.unwrap_or(text.len()))
}

fn rewrite_tag(tag: &str) -> String {
    let tokens = tokenize(tag);
    let mut rewriter = Rewriter::new(&tokens);
    if tag.starts_with("{%") {
        rewriter.rewrite_statement();
    }
    rewriter.rewrite_expressions();
    rewriter.apply(tag)
}
