//! Text of values as in Python: `str` and `repr`.

use std::fmt::Write;
use std::sync::LazyLock;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};
use regex::Regex;

use super::arguments::refuse;

/// Maximum nesting of values that are written or compared; Python has a similar limit.
pub(super) const DEEPEST: usize = 200;
/// Maximum length of a text in bytes; a template can build texts of about this length step by step.
const LONGEST: usize = 64_000_000;

/// Characters that `repr` escapes, besides quotes and the backslash.
static NOT_PRINTED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[\p{C}\p{Zl}\p{Zp}\p{Zs}]$").expect("the expression is valid"));

fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    !NOT_PRINTED.is_match(c.encode_utf8(&mut [0; 4]))
}

/// Refuses a text of more than the maximum length.
pub(super) fn check_length(bytes: usize) -> Result<(), Error> {
    if bytes > LONGEST { Err(refuse("a text is too long")) } else { Ok(()) }
}

/// Returns the text of `str(value)`.
///
/// # Errors
/// Values that are nested too deep, and texts that are too long.
pub(super) fn write(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => Ok(String::new()),
        _ => repr(value),
    }
}

/// Returns the text of `repr(value)`.
///
/// # Errors
/// Values that are nested too deep, and texts that are too long.
fn repr(value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    push_repr(&mut text, value, 0)?;
    Ok(text)
}

fn push_repr(text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(refuse("a value is nested too deep"));
    }
    check_length(text.len())?;
    match value.kind() {
        ValueKind::Undefined => text.push_str("Undefined"),
        ValueKind::String => push_quoted(text, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            text.push_str(&write_float(f64::try_from(value.clone())?));
        }
        ValueKind::Map => {
            text.push('{');
            for (place, key) in value.try_iter()?.enumerate() {
                text.push_str(if place == 0 { "" } else { ", " });
                push_repr(text, &key, depth + 1)?;
                text.push_str(": ");
                push_repr(text, &value.get_item(&key)?, depth + 1)?;
            }
            text.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let [open, close] = if value.is_tuple() { ["(", ")"] } else { ["[", "]"] };
            text.push_str(open);
            push_items(text, value, depth)?;
            text.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            text.push_str(close);
        }
        _ => text.push_str(&value.to_string()),
    }
    Ok(())
}

fn push_items(text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    for (place, item) in value.try_iter()?.enumerate() {
        text.push_str(if place == 0 { "" } else { ", " });
        push_repr(text, &item, depth + 1)?;
    }
    Ok(())
}

fn push_quoted(text: &mut String, value: &str) {
    let quote = if value.contains('\'') && !value.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for c in value.chars() {
        match c {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            c if c == quote => text.extend(['\\', c]),
            c if is_printable(c) => text.push(c),
            c => {
                // Writing to a string cannot fail.
                let _ = match u32::from(c) {
                    code @ ..=0xff => write!(text, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(text, "\\u{code:04x}"),
                    code => write!(text, "\\U{code:08x}"),
                };
            }
        }
    }
    text.push(quote);
}

/// Returns the shortest digits that parse as the same number, with Python's exponents.
pub(super) fn write_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or_default();
            format!("{digits}e{exponent:+03}")
        }
        None => text,
    }
}
