//! Filter `tojson`: Python's `json.dumps`, with the settings that transformers passes to it.

use std::io::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Error, Value};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::arguments::{CallArguments, as_integer, as_text, bind, filter_none, refuse};
use super::text::{DEEPEST, write_float};

/// Maximum number of spaces per indentation level.
const WIDEST: i64 = 1000;

/// JSON formatter with Python's separators and escapes.
struct PythonFormatter {
    only_ascii: bool,
    /// Indentation of a level, if each item has its own line.
    indent: Option<String>,
    between_items: String,
    after_key: String,
    depth: usize,
    /// True if the innermost list or mapping has an item.
    has_items: bool,
}

pub(super) fn to_json(value: Value, arguments: CallArguments) -> Result<String, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort_keys] = bind(&arguments.into_values(), names)?;
    let value = if sort_keys.is_some_and(|sort_keys| sort_keys.is_true()) {
        sort_mappings(&value, 0)?
    } else {
        value
    };
    let indent = filter_none(indent.as_ref()).map(read_indent).transpose()?;
    let between_items = if indent.is_some() { "," } else { ", " };
    let mut formatter = PythonFormatter {
        only_ascii: ascii.is_some_and(|ascii| ascii.is_true()),
        indent,
        between_items: between_items.into(),
        after_key: ": ".into(),
        depth: 0,
        has_items: false,
    };
    if let Some(separators) = filter_none(separators.as_ref()) {
        let separators: Vec<Value> = separators.try_iter()?.collect();
        let [items, key] = &separators[..] else {
            return Err(refuse(format!("expected 2 separators, found {}", separators.len())));
        };
        formatter.between_items = as_text(items)?.into();
        formatter.after_key = as_text(key)?.into();
    }
    if value.is_undefined() {
        return Err(refuse("tojson: undefined cannot be written as JSON"));
    }
    let mut json = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut json, formatter));
    written.map_err(|error| refuse(format!("tojson: {error}")))?;
    String::from_utf8(json).map_err(|error| refuse(error.to_string()))
}

/// Returns the value with the keys of all mappings in sorted order.
fn sort_mappings(value: &Value, depth: usize) -> Result<Value, Error> {
    if depth > DEEPEST {
        return Err(refuse("tojson: a value is nested too deep"));
    }
    match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            keys.sort();
            let pair =
                |key: Value| Ok((key.clone(), sort_mappings(&value.get_item(&key)?, depth + 1)?));
            let pairs = keys.into_iter().map(pair).collect::<Result<Vec<_>, Error>>()?;
            Ok(Value::from_pairs(pairs))
        }
        ValueKind::Seq => value.try_iter()?.map(|item| sort_mappings(&item, depth + 1)).collect(),
        _ => Ok(value.clone()),
    }
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

impl PythonFormatter {
    fn open(&mut self, writer: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_items = false;
        if self.depth > DEEPEST {
            return Err(io::Error::other("a value is nested too deep"));
        }
        writer.write_all(bracket)
    }

    fn close(&mut self, writer: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_items {
            self.begin_line(writer)?;
        }
        self.has_items = true;
        writer.write_all(bracket)
    }

    fn begin_item(&mut self, writer: &mut (impl Write + ?Sized), first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.between_items.as_bytes())?;
        }
        self.has_items = true;
        self.begin_line(writer)
    }

    fn begin_line(&self, writer: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        write!(writer, "\n{}", indent.repeat(self.depth))
    }
}

impl Formatter for PythonFormatter {
    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.begin_item(writer, first)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.begin_item(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.after_key.as_bytes())
    }

    fn write_f64<W: Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(write_float(value).as_bytes())
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.only_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if c <= '~' {
                write!(writer, "{c}")?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}
