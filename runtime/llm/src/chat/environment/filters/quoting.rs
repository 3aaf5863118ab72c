//! Escapes of HTML and URLs.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::super::arguments::refuse;
use super::super::text;

/// Escapes the special characters of HTML, as markupsafe does.
pub(in super::super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            c => escaped.push(c),
        }
    }
    escaped
}

pub(super) fn escape_value(value: Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value) } else { force_escape(value) }
}

pub(super) fn force_escape(value: Value) -> Result<Value, Error> {
    Ok(Value::from_safe_string(escape(&text::write(&value)?)))
}

/// Percent-encodes a text, or the pairs of a query.
pub(super) fn encode_url(value: Value) -> Result<String, Error> {
    let pairs: Vec<(Value, Value)> = match value.kind() {
        ValueKind::Map => {
            let pair = |key: Value| Ok((key.clone(), value.get_item(&key)?));
            value.try_iter()?.map(pair).collect::<Result<_, Error>>()?
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let pair = |item: Value| -> Result<(Value, Value), Error> {
                let items: Vec<Value> = item.try_iter()?.collect();
                let pair = <[Value; 2]>::try_from(items);
                pair.map(Into::into).map_err(|_| refuse("urlencode: expected pairs"))
            };
            value.try_iter()?.map(pair).collect::<Result<_, Error>>()?
        }
        _ => return Ok(quote(&text::write(&value)?, b"/")),
    };
    let encode = |part: &Value| -> Result<String, Error> {
        Ok(quote(&text::write(part)?, b"").replace("%20", "+"))
    };
    let encode_pair = |(key, value): &(Value, Value)| -> Result<String, Error> {
        Ok([encode(key)?, encode(value)?].join("="))
    };
    let pairs: Vec<String> = pairs.iter().map(encode_pair).collect::<Result<_, _>>()?;
    Ok(pairs.join("&"))
}

fn quote(text: &str, safe: &[u8]) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) || safe.contains(&byte) {
            quoted.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(quoted, "%{byte:02X}");
        }
    }
    quoted
}
