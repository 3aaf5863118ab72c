//! What can be wrong with a value, with its structure kept.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use crate::node::Span;

/// What went wrong, with its structure kept.
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

/// A fault, where it is, and the keys that lead there.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) fault: Fault,
    pub(crate) span: Span,
    pub(crate) path: Vec<String>,
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        // A missing field is only found at a table's end, when it has already become text.
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
