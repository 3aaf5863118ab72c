//! Faults of values, as data instead of text.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use crate::node::TextSpan;

/// A fault of a value.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Custom(String),
    #[error("this is {found}, expected {expected}")]
    WrongType { found: String, expected: String },
    #[error("{found} is not allowed, expected {expected}")]
    BadValue { found: String, expected: String },
    #[error("unknown name `{name}`")]
    UnknownName { name: String, known: Vec<String> },
    #[error("unknown field `{field}`")]
    UnknownField { field: String, known: Vec<String> },
    #[error("missing field `{0}`")]
    MissingField(String),
}

/// A fault, its place in the text, and the keys that lead to it.
#[derive(Clone, Debug)]
pub(crate) struct LocatedFault {
    pub(crate) fault: Fault,
    pub(crate) span: TextSpan,
    pub(crate) path: Vec<String>,
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        // A missing field is found at a table's end, where a trait object has already turned the
        // error into text.
        let message = message.to_string();
        let field = message.strip_prefix("missing field `").and_then(|m| m.strip_suffix('`'));
        field.map_or_else(|| Self::Custom(message.clone()), |f| Self::MissingField(f.to_owned()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::WrongType { found: found.to_string(), expected: expected.to_string() }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::BadValue { found: found.to_string(), expected: expected.to_string() }
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownName { name: name.into(), known: owned(known) }
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownField { field: field.into(), known: owned(known) }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::MissingField(field.into())
    }
}
