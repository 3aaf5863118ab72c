//! A number of tokens, or as many as pay.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{ShareWithLeast, Size, size::SizeVisitor};

/// How many tokens a selector takes: a [`Size`], or `"auto"`, as many as are cheaper to take than
/// to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AutoSize {
    /// As many as make what is read in all the least. What that is follows from the promise that
    /// the sample after it must keep ([`Row::sampling`](crate::step::Row::sampling)).
    Auto,
    /// A fixed size.
    Fixed(Size),
}

impl From<Size> for AutoSize {
    fn from(size: Size) -> Self {
        Self::Fixed(size)
    }
}

struct AutoSizeVisitor;

impl<'de> de::Visitor<'de> for AutoSizeVisitor {
    type Value = AutoSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SizeVisitor.expecting(f)?;
        f.write_str(", or \"auto\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<AutoSize, E> {
        match text {
            "auto" => Ok(AutoSize::Auto),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_u64<E: de::Error>(self, tokens: u64) -> Result<AutoSize, E> {
        SizeVisitor.visit_u64(tokens).map(AutoSize::Fixed)
    }

    fn visit_i64<E: de::Error>(self, tokens: i64) -> Result<AutoSize, E> {
        SizeVisitor.visit_i64(tokens).map(AutoSize::Fixed)
    }

    fn visit_f64<E: de::Error>(self, share: f64) -> Result<AutoSize, E> {
        SizeVisitor.visit_f64(share).map(AutoSize::Fixed)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, table: A) -> Result<AutoSize, A::Error> {
        SizeVisitor.visit_map(table).map(AutoSize::Fixed)
    }
}

impl<'de> Deserialize<'de> for AutoSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AutoSizeVisitor)
    }
}

impl Serialize for AutoSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(size) => size.serialize(serializer),
        }
    }
}

impl JsonSchema for AutoSize {
    fn schema_name() -> Cow<'static, str> {
        "AutoSize".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let with_least = generator.subschema_for::<ShareWithLeast>();
        json_schema!({
            "description":
                "tokens (a whole number), a share of the context (0.05), or as many as pay (\"auto\")",
            "anyOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 },
                with_least,
                { "const": "auto" },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_auto_are_read_and_written() {
        for text in ["128", "0.05", r#"{"share":0.05,"least":32}"#, "\"auto\""] {
            let size: AutoSize = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&size).unwrap(), text);
            assert_eq!(size == AutoSize::Auto, text == "\"auto\"");
        }
        for bad in ["0", "1.0", "1.5", "\"all\"", "true"] {
            let error = serde_json::from_str::<AutoSize>(bad).unwrap_err().to_string();
            assert!(error.contains("a whole number") || error.contains("ambiguous"), "{error}");
        }
    }
}
