//! The filter `tojson`: `json.dumps` of Python, with the settings that transformers passes on.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::arguments::{Arguments, as_integer, as_text, bind, given, refuse};
use super::operators::check_order;
use super::text::{DEEPEST, check_length, is_list, write_float};
use super::{methods, operators};

/// Maximum number of spaces of a level.
const WIDEST: i64 = 1000;

struct JsonSettings {
    only_ascii: bool,
    /// White space of a level, if each item has its own line.
    indent: Option<String>,
    between_items: String,
    behind_key: String,
    sorts_keys: bool,
}

pub(super) fn to_json(value: Value, arguments: Arguments) -> Result<String, Error> {
    let [ascii, indent, separators, sorts] =
        bind(&arguments.into_values(), ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = given(indent.as_ref()).map(read_indent).transpose()?;
    let between_items = if indent.is_some() { "," } else { ", " };
    let mut settings = JsonSettings {
        only_ascii: is_true(ascii),
        indent,
        between_items: between_items.into(),
        behind_key: ": ".into(),
        sorts_keys: is_true(sorts),
    };
    if let Some(separators) = given(separators.as_ref()) {
        let separators: Vec<Value> = separators.try_iter()?.collect();
        let [items, key] = &separators[..] else {
            return Err(refuse(format!("expected 2 separators, found {}", separators.len())));
        };
        settings.between_items = as_text(items)?.into();
        settings.behind_key = as_text(key)?.into();
    }
    let mut text = String::new();
    settings.push(&mut text, &value, 0)?;
    Ok(text)
}

fn read_indent(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let width = as_integer(indent)?;
    if width > WIDEST {
        return Err(refuse(format!("indent: {width}; expected at most {WIDEST}")));
    }
    Ok(" ".repeat(usize::try_from(width).unwrap_or_default()))
}

impl JsonSettings {
    fn push(&self, text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(refuse("tojson: a value is nested too deep"));
        }
        check_length(text.len())?;
        match value.kind() {
            ValueKind::String => self.push_text(text, value.as_str().unwrap_or_default()),
            ValueKind::Map if !methods::is_namespace(value) => {
                let keys = self.keys(value)?;
                self.push_all(text, ["{", "}"], keys.len(), depth, |text, place| {
                    let (written, key) = &keys[place];
                    self.push_text(text, written);
                    text.push_str(&self.behind_key);
                    self.push(text, &value.get_item(key)?, depth + 1)
                })?;
            }
            _ if is_list(value) || value.is_tuple() => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.push_all(text, ["[", "]"], items.len(), depth, |text, place| {
                    self.push(text, &items[place], depth + 1)
                })?;
            }
            kind => {
                let scalar = write_scalar(value);
                let refused = || refuse(format!("tojson: {kind} cannot be written as JSON"));
                text.push_str(&scalar.ok_or_else(refused)?);
            }
        }
        Ok(())
    }

    fn push_all(
        &self,
        text: &mut String,
        [open, close]: [&str; 2],
        count: usize,
        depth: usize,
        mut push: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        text.push_str(open);
        for place in 0..count {
            text.push_str(if place == 0 { "" } else { &self.between_items });
            self.push_line(text, depth + 1);
            push(text, place)?;
        }
        if count > 0 {
            self.push_line(text, depth);
        }
        text.push_str(close);
        Ok(())
    }

    fn push_line(&self, text: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            text.push('\n');
            text.push_str(&indent.repeat(depth));
        }
    }

    /// Keys of a mapping, each with its JSON text.
    fn keys(&self, value: &Value) -> Result<Vec<(String, Value)>, Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sorts_keys {
            check_order(&keys)?;
            keys.sort_by(|left, right| {
                operators::compare(left, right).ok().flatten().unwrap_or(std::cmp::Ordering::Equal)
            });
        }
        let write = |key: Value| {
            let text = key.as_str().map(str::to_owned).or_else(|| write_scalar(&key));
            let refused = || refuse(format!("tojson: a key is {}", key.kind()));
            Ok((text.ok_or_else(refused)?, key))
        };
        keys.into_iter().map(write).collect()
    }

    fn push_text(&self, text: &mut String, value: &str) {
        text.push('"');
        for c in value.chars() {
            match c {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                c if c < ' ' || self.only_ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(text, "\\u{unit:04x}");
                    }
                }
                c => text.push(c),
            }
        }
        text.push('"');
    }
}

/// Text of a number, a truth value or `none`.
fn write_scalar(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::None => Some("null".into()),
        ValueKind::Bool => Some(value.is_true().to_string()),
        ValueKind::Number if value.is_integer() => Some(value.to_string()),
        ValueKind::Number => {
            let number = f64::try_from(value.clone()).ok()?;
            Some(match number {
                f64::INFINITY => "Infinity".into(),
                f64::NEG_INFINITY => "-Infinity".into(),
                _ if number.is_nan() => "NaN".into(),
                _ => write_float(number),
            })
        }
        _ => None,
    }
}
