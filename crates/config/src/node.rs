//! TOML values with their places in the source texts.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A place in one of the texts of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TextSpan {
    /// Index of the text among the sources.
    pub(crate) source: usize,
    /// First byte.
    pub(crate) start: usize,
    /// End of the bytes, exclusive.
    pub(crate) end: usize,
}

impl TextSpan {
    pub(crate) fn new(source: usize, range: Range<usize>) -> Self {
        Self { source, start: range.start, end: range.end }
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) span: TextSpan,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    /// A whole number beyond i64.
    Large(u64),
    Float(f64),
    Str(String),
    /// Description of a value that no field accepts: a date, a number beyond u64, or a value that
    /// is nested too deeply.
    Other(&'static str),
    Array(Vec<Node>),
    Table(Vec<TableEntry>),
}

/// A key of a table and its value.
#[derive(Clone, Debug)]
pub(crate) struct TableEntry {
    pub(crate) key: String,
    pub(crate) span: TextSpan,
    pub(crate) node: Node,
}

impl Node {
    /// Parses a text, and continues after syntax errors as far as possible.
    pub(crate) fn parse(source: usize, text: &str) -> (Self, Vec<toml::de::Error>) {
        let (table, errors) = DeTable::parse_recoverable(text);
        let span = TextSpan::new(source, table.span());
        (Self { span, value: table_value(source, table.get_ref(), 0) }, errors)
    }

    pub(crate) fn entries(&self) -> &[TableEntry] {
        if let Value::Table(entries) = &self.value { entries } else { &[] }
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&TableEntry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// Returns a copy of the table, with this `type` if it has none.
    pub(crate) fn with_type(&self, name: &str) -> Self {
        self.with("type", Value::Str(name.to_owned()))
    }

    /// Returns a copy of the table, with this value for a key if it lacks the key.
    pub(crate) fn with(&self, key: &str, value: Value) -> Self {
        let mut whole = self.clone();
        if let Value::Table(entries) = &mut whole.value
            && self.get(key).is_none()
        {
            let (key, span) = (key.to_owned(), self.span.clone());
            let node = Self { span: span.clone(), value };
            entries.push(TableEntry { key, span, node });
        }
        whole
    }

    /// Removes an entry from a table, and returns its value.
    pub(crate) fn take(&mut self, key: &str) -> Option<Self> {
        let Value::Table(entries) = &mut self.value else { return None };
        let place = entries.iter().position(|entry| entry.key == key)?;
        Some(entries.remove(place).node)
    }

    /// Removes the entries of a table whose keys are not among `keys`.
    pub(crate) fn retain_keys(&mut self, keys: &[&str]) {
        if let Value::Table(entries) = &mut self.value {
            entries.retain(|entry| keys.contains(&&*entry.key));
        }
    }

    /// Returns true for an empty list.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.value, Value::Array(items) if items.is_empty())
    }

    /// Removes the value at a path of keys, or the outermost list that contains it. Returns the
    /// number of keys that lead to the removed value.
    pub(crate) fn remove_at(&mut self, path: &[String]) -> Option<usize> {
        let (key, rest) = path.split_first()?;
        let Value::Table(entries) = &mut self.value else { return None };
        let entry = entries.iter_mut().find(|entry| entry.key == *key)?;
        let within = entry.node.remove_at(rest).unwrap_or(0);
        (within > 0 || self.take(key).is_some()).then_some(1 + within)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// Follows a path of keys as far as they exist, and returns the last node.
    pub(crate) fn descend(&self, path: &[String]) -> &Self {
        let next = path.split_first().and_then(|(key, rest)| Some((self.get(key)?, rest)));
        next.map_or(self, |(node, rest)| node.descend(rest))
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Value::Str(text) = &self.value { Some(text) } else { None }
    }
}

/// Name of the type of a date in messages.
pub(crate) const DATE: &str = "a date or time";

/// Largest depth of nested tables and lists, which limits the recursion of readers.
const DEEPEST: usize = 32;

fn table_value(source: usize, table: &DeTable<'_>, depth: usize) -> Value {
    let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| TableEntry {
        key: AsRef::<str>::as_ref(key.get_ref()).to_owned(),
        span: TextSpan::new(source, key.span()),
        node: node(source, value, depth + 1),
    };
    Value::Table(table.iter().map(|(key, value)| entry((key, value))).collect())
}

fn node(source: usize, value: &Spanned<DeValue<'_>>, depth: usize) -> Node {
    let span = TextSpan::new(source, value.span());
    let value = match value.get_ref() {
        DeValue::Boolean(x) => Value::Bool(*x),
        DeValue::Integer(x) => parse_integer(x.as_str(), x.radix()),
        DeValue::Float(x) => Value::Float(x.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::String(x) => Value::Str(x.to_string()),
        DeValue::Datetime(_) => Value::Other(DATE),
        DeValue::Array(_) | DeValue::Table(_) if depth >= DEEPEST => {
            Value::Other("within too many tables or lists")
        }
        DeValue::Array(x) => Value::Array(x.iter().map(|x| node(source, x, depth + 1)).collect()),
        DeValue::Table(x) => table_value(source, x, depth),
    };
    Node { span, value }
}

fn parse_integer(digits: &str, radix: u32) -> Value {
    let large = || u64::from_str_radix(digits, radix).map(Value::Large);
    let number = i64::from_str_radix(digits, radix).map(Value::Int).or_else(|_| large());
    number.unwrap_or(Value::Other("a whole number beyond 2^64 - 1"))
}
