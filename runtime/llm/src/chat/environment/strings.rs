//! Python's operations on strings.

use std::ops::Range;
use std::sync::LazyLock;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};
use regex::Regex;

use super::arguments::{as_integer, as_text, bind, given, refuse, require};
use super::text::{check_length, is_printable, is_space};

/// Maximum number of characters of a padded text.
const WIDEST: usize = 1 << 20;

/// Range of positions between two bounds; negative bounds count from the end.
pub(super) fn clamp_range(
    length: usize,
    start: Option<&Value>,
    stop: Option<&Value>,
) -> Result<Range<usize>, Error> {
    let clamp = |bound: Option<&Value>, default: usize| -> Result<usize, Error> {
        let Some(bound) = given(bound) else { return Ok(default) };
        let bound = as_integer(bound)?;
        let bound = if bound < 0 { bound.saturating_add(length as i64).max(0) } else { bound };
        Ok(usize::try_from(bound).unwrap_or(usize::MAX))
    };
    Ok(clamp(start, 0)?..clamp(stop, length)?.min(length))
}

/// Byte offset of a character, or the end of the text for a position after the last.
fn byte_at(text: &str, character: usize) -> usize {
    text.char_indices().nth(character).map_or(text.len(), |(byte, _)| byte)
}

/// Part of a text between two character positions, if the first one exists.
fn slice(text: &str, range: Range<usize>) -> Option<&str> {
    (range.start <= range.end).then(|| &text[byte_at(text, range.start)..byte_at(text, range.end)])
}

pub(super) fn find(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [part, start, stop] = bind(arguments, ["sub", "start", "end"])?;
    let part = as_text(require(part.as_ref(), "sub")?)?;
    let range = clamp_range(text.chars().count(), start.as_ref(), stop.as_ref())?;
    let first = range.start;
    let slice = slice(text, range);
    if method == "count" {
        return Ok(Value::from(slice.map_or(0, |slice| slice.matches(part).count())));
    }
    let byte = slice.and_then(|slice| match method {
        "find" | "index" => slice.find(part),
        _ => slice.rfind(part),
    });
    match (byte, slice) {
        (Some(byte), Some(slice)) => Ok(Value::from(first + slice[..byte].chars().count())),
        _ if method.ends_with("find") => Ok(Value::from(-1)),
        _ => Err(refuse(format!("{method}: the substring is not found"))),
    }
}

pub(super) fn has_end(text: &str, at_start: bool, arguments: &[Value]) -> Result<Value, Error> {
    let [ends, start, stop] = bind(arguments, ["prefix", "start", "end"])?;
    let ends = require(ends.as_ref(), "prefix")?;
    let range = clamp_range(text.chars().count(), start.as_ref(), stop.as_ref())?;
    let slice = slice(text, range);
    let has = |end: &Value| -> Result<bool, Error> {
        let end = as_text(end)?;
        let has_end = |slice: &str| {
            if at_start { slice.starts_with(end) } else { slice.ends_with(end) }
        };
        Ok(slice.is_some_and(has_end))
    };
    if ends.kind() == ValueKind::String {
        return has(ends).map(Value::from);
    }
    if !ends.is_tuple() {
        return Err(refuse(format!("expected a string or a tuple, found {}", ends.kind())));
    }
    for end in ends.try_iter()? {
        if has(&end)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

pub(super) fn strip<'t>(text: &'t str, method: &str, characters: Option<&str>) -> &'t str {
    let is_stripped = |c: char| characters.map_or_else(|| is_space(c), |all| all.contains(c));
    match method {
        "strip" => text.trim_matches(is_stripped),
        "lstrip" => text.trim_start_matches(is_stripped),
        _ => text.trim_end_matches(is_stripped),
    }
}

/// Splits a text at most `most` times, from its end if `from_end`.
pub(super) fn split<'t>(
    text: &'t str,
    separator: Option<&str>,
    most: usize,
    from_end: bool,
) -> Result<Vec<&'t str>, Error> {
    let Some(separator) = separator else {
        return Ok(split_at_space(text, most, from_end));
    };
    if separator.is_empty() {
        return Err(refuse("the separator is empty"));
    }
    let pieces = most.saturating_add(1);
    if from_end {
        let mut parts: Vec<&str> = text.rsplitn(pieces, separator).collect();
        parts.reverse();
        return Ok(parts);
    }
    Ok(text.splitn(pieces, separator).collect())
}

fn split_at_space(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    if from_end {
        loop {
            rest = rest.trim_end_matches(is_space);
            if rest.is_empty() || parts.len() == most {
                break;
            }
            let (before, part) = match rest.char_indices().rev().find(|(_, c)| is_space(*c)) {
                Some((byte, c)) => rest.split_at(byte + c.len_utf8()),
                None => ("", rest),
            };
            parts.push(part);
            rest = before;
        }
        parts.extend((!rest.is_empty()).then_some(rest));
        parts.reverse();
    } else {
        loop {
            rest = rest.trim_start_matches(is_space);
            if rest.is_empty() || parts.len() == most {
                break;
            }
            let (part, behind) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
            parts.push(part);
            rest = behind;
        }
        parts.extend((!rest.is_empty()).then_some(rest));
    }
    parts
}

pub(super) fn split_lines(text: &str, keeps: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}')
            || matches!(c, '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let behind = &rest[end..];
        let ending = if behind.starts_with("\r\n") {
            2
        } else {
            behind.chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keeps { end + ending } else { end }]);
        rest = &behind[ending..];
    }
    lines
}

pub(super) fn partition<'t>(
    text: &'t str,
    separator: &'t str,
    from_end: bool,
) -> Result<[&'t str; 3], Error> {
    if separator.is_empty() {
        return Err(refuse("the separator is empty"));
    }
    let parts = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    Ok(match parts {
        Some((before, behind)) => [before, separator, behind],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    })
}

/// Joins texts with a separator between them.
pub(super) fn join(texts: &[impl AsRef<str>], separator: &str) -> Result<String, Error> {
    let mut joined = String::new();
    for (place, text) in texts.iter().enumerate() {
        check_length(joined.len() + separator.len() + text.as_ref().len())?;
        joined.push_str(if place == 0 { "" } else { separator });
        joined.push_str(text.as_ref());
    }
    Ok(joined)
}

/// Number of characters by which a text is shorter than a width.
fn count_missing(text: &str, width: i64) -> Result<usize, Error> {
    let missing = usize::try_from(width).unwrap_or_default().saturating_sub(text.chars().count());
    if missing > WIDEST { Err(refuse("the width is too large")) } else { Ok(missing) }
}

pub(super) fn pad(text: &str, method: &str, width: i64, fill: &str) -> Result<String, Error> {
    if fill.chars().count() != 1 {
        return Err(refuse("expected a fill of one character"));
    }
    let missing = count_missing(text, width)?;
    let odd = missing & usize::try_from(width).unwrap_or_default() & 1;
    let before = match method {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + odd,
    };
    Ok([&fill.repeat(before), text, &fill.repeat(missing - before)].concat())
}

pub(super) fn fill_with_zeros(text: &str, width: i64) -> Result<String, Error> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = &text[..text.len() - digits.len()];
    Ok([sign, &"0".repeat(count_missing(text, width)?), digits].concat())
}

pub(super) fn expand_tabs(text: &str, size: usize) -> Result<String, Error> {
    if size > WIDEST {
        return Err(refuse("the width is too large"));
    }
    let mut expanded = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size == 0 => (),
            '\t' => {
                let spaces = size - column % size;
                check_length(expanded.len())?;
                expanded.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            _ => {
                expanded.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(expanded)
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

pub(super) fn change_case(text: &str, method: &str) -> String {
    let swap = |c: char| -> String {
        if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
    };
    match method {
        "swapcase" => text.chars().map(swap).collect(),
        "casefold" => text.to_lowercase().replace('ß', "ss").replace('ς', "σ"),
        _ => {
            let mut is_inside = false;
            let mut title = String::new();
            for c in text.chars() {
                if is_inside {
                    title.extend(c.to_lowercase());
                } else {
                    title.extend(c.to_uppercase());
                }
                is_inside = is_cased(c);
            }
            title
        }
    }
}

/// Decimal digits. [`DIGITS`] also matches superscripts and digits in circles or parentheses.
static DECIMALS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^\p{Nd}+$").expect("the expression is valid"));
static DIGITS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("^[\\p{Nd}²³¹⁰⁴-⁹₀-₉①-⑨⑴-⑼⒈-⒐⓪⓵-⓽⓿❶-❾➀-➈➊-➒]+$").expect("the expression is valid")
});

pub(super) fn is(text: &str, method: &str) -> bool {
    let is_letter = |c: char| c.is_alphabetic() || c == '_';
    match method {
        "isspace" => !text.is_empty() && text.chars().all(is_space),
        "isdecimal" => DECIMALS.is_match(text),
        "isdigit" => DIGITS.is_match(text),
        "isidentifier" => {
            text.starts_with(is_letter) && text.chars().all(|c| is_letter(c) || c.is_alphanumeric())
        }
        "isprintable" => text.chars().all(is_printable),
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        _ => text.chars().any(is_cased) && text == change_case(text, "title"),
    }
}
