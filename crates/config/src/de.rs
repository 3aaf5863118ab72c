//! A `serde::Deserializer` over [`Node`] that preserves the structure and the places of errors.
//!
//! Components are read through trait objects, which turn errors into text without places. So the
//! first failure is recorded here, inside the call, with its structure and place. `type` is read
//! first, whatever its position in the file; otherwise serde would buffer the other fields without
//! their places.

use std::cell::RefCell;

use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use crate::fault::{Fault, LocatedFault};
use crate::node::{Node, TableEntry, TextSpan, Value};

/// Reads a value from a node.
pub(crate) fn read<T: DeserializeOwned>(node: &Node) -> Result<T, LocatedFault> {
    let notes = Notes::default();
    let result = T::deserialize(NodeDe { node, notes: &notes });
    let here = |fault| LocatedFault { fault, span: node.span.clone(), path: Vec::new() };
    result.map_err(|fault| notes.first.take().unwrap_or_else(|| here(fault)))
}

/// Reads a table, or returns all its faults.
///
/// Reading stops at the first fault. So the faulty entry is removed and the rest is read again. An
/// inner table that lacks a required entry, perhaps because the entry was faulty, is removed as
/// well.
pub(crate) fn read_all<T: DeserializeOwned>(table: &Node) -> Result<T, Vec<LocatedFault>> {
    let mut rest = table.clone();
    let mut faults: Vec<LocatedFault> = Vec::new();
    let mut removed: Vec<Vec<String>> = Vec::new();
    loop {
        let located = match read(&rest) {
            Ok(value) if faults.is_empty() => return Ok(value),
            Ok(_) => return Err(faults),
            Err(located) => located,
        };
        let mut place = located.path.clone();
        let field = match &located.fault {
            Fault::UnknownField { field, .. } | Fault::MissingField(field) => Some(field.clone()),
            _ => None,
        };
        place.extend(field);
        let was_removed = removed.contains(&place);
        if matches!(located.fault, Fault::MissingField(_)) || is_type(&place) {
            place.pop();
        }
        if !was_removed {
            faults.push(located);
        }
        let Some(keys) = rest.remove_at(&place) else { return Err(faults) };
        place.truncate(keys);
        removed.push(place);
    }
}

/// Returns true if keys lead to a `type`, without which a table cannot be read.
fn is_type(path: &[String]) -> bool {
    path.last().is_some_and(|key| key == "type")
}

/// Current position of the deserializer, and the first fault.
#[derive(Default)]
struct Notes {
    path: RefCell<Vec<String>>,
    first: RefCell<Option<LocatedFault>>,
}

impl Notes {
    fn note<T>(&self, result: Result<T, Fault>, span: &TextSpan) -> Result<T, Fault> {
        if let Err(fault) = &result {
            let mut first = self.first.borrow_mut();
            first.get_or_insert_with(|| LocatedFault {
                fault: fault.clone(),
                span: span.clone(),
                path: self.path.borrow().clone(),
            });
        }
        result
    }

    /// Runs `read` with one more step in the path.
    fn within<T>(
        &self,
        step: String,
        node: &Node,
        read: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.path.borrow_mut().push(step);
        let result = self.note(read(), &node.span);
        self.path.borrow_mut().pop();
        result
    }
}

#[derive(Clone, Copy)]
struct NodeDe<'de, 'n> {
    node: &'de Node,
    notes: &'n Notes,
}

impl<'de> Deserializer<'de> for NodeDe<'de, '_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let result = match &self.node.value {
            Value::Bool(x) => visitor.visit_bool(*x),
            Value::Int(x) => visitor.visit_i64(*x),
            Value::Large(x) => visitor.visit_u64(*x),
            Value::Float(x) => visitor.visit_f64(*x),
            Value::Str(x) => visitor.visit_borrowed_str(x),
            Value::Other(what) => Err(de::Error::invalid_type(Unexpected::Other(what), &visitor)),
            Value::Array(items) => {
                visitor.visit_seq(Items { items: items.iter().enumerate(), notes: self.notes })
            }
            Value::Table(entries) => visitor.visit_map(Entries::new(entries, self.notes)),
        };
        self.notes.note(result, &self.node.span)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Str(word) => {
                visitor.visit_enum(WordDe { word, span: &self.node.span, notes: self.notes })
            }
            Value::Table(entries) if entries.len() == 1 => {
                let entries = Entries::new(entries, self.notes);
                let result = visitor.visit_enum(de::value::MapAccessDeserializer::new(entries));
                self.notes.note(result, &self.node.span)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Items<'de, 'n> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
    notes: &'n Notes,
}

impl<'de> de::SeqAccess<'de> for Items<'de, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let notes = self.notes;
        let read = || seed.deserialize(NodeDe { node, notes });
        notes.within(index.to_string(), node, read).map(Some)
    }
}

struct Entries<'de, 'n> {
    rest: std::vec::IntoIter<&'de TableEntry>,
    current: Option<&'de TableEntry>,
    notes: &'n Notes,
}

impl<'de, 'n> Entries<'de, 'n> {
    fn new(entries: &'de [TableEntry], notes: &'n Notes) -> Self {
        let mut entries: Vec<_> = entries.iter().collect();
        entries.sort_by_key(|entry| entry.key != "type");
        Self { rest: entries.into_iter(), current: None, notes }
    }
}

impl<'de> de::MapAccess<'de> for Entries<'de, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.current = self.rest.next();
        let Some(entry) = self.current else { return Ok(None) };
        let word = WordDe { word: &entry.key, span: &entry.span, notes: self.notes };
        seed.deserialize(word).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        let Some(entry) = self.current.take() else {
            return Err(de::Error::custom("a value was requested before its key"));
        };
        let (node, notes) = (&entry.node, self.notes);
        notes.within(entry.key.clone(), node, || seed.deserialize(NodeDe { node, notes }))
    }
}

/// A key, or the name of a variant, whose faults are recorded with their structure.
struct WordDe<'de, 'n> {
    word: &'de str,
    span: &'de TextSpan,
    notes: &'n Notes,
}

impl<'de> Deserializer<'de> for WordDe<'de, '_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.notes.note(visitor.visit_borrowed_str(self.word), self.span)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

impl<'de> de::EnumAccess<'de> for WordDe<'de, '_> {
    type Error = Fault;
    type Variant = NoContent;

    fn variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<(T::Value, NoContent), Fault> {
        Ok((seed.deserialize(self)?, NoContent))
    }
}

/// Absent content of a variant.
struct NoContent;

impl<'de> de::VariantAccess<'de> for NoContent {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Fault> {
        Err(de::Error::invalid_type(Unexpected::UnitVariant, &"a variant with content"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        Err(de::Error::invalid_type(Unexpected::UnitVariant, &visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        Err(de::Error::invalid_type(Unexpected::UnitVariant, &visitor))
    }
}
