//! Ranges of layers, as pipeline files write them.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Result;

/// One layer (`3`), a range of layers without its end (`"2..30"`), or a layer and all later ones
/// (`"30.."`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// One layer.
    One(usize),
    /// Layers from the first number up to, but not including, the second, which is larger.
    Range(usize, usize),
    /// The layer of this number and all later layers.
    From(usize),
}

impl Layers {
    /// Returns true if a layer is in the range.
    pub fn contains(self, layer: usize) -> bool {
        let (first, end) = self.bounds();
        first <= layer && end.is_none_or(|end| layer < end)
    }

    /// First layer that both ranges contain, if there is one.
    pub(super) fn first_common(self, other: Self) -> Option<usize> {
        let first = self.bounds().0.max(other.bounds().0);
        (self.contains(first) && other.contains(first)).then_some(first)
    }

    /// First layer, and the end, which is not part of the range.
    pub(super) fn bounds(self) -> (usize, Option<usize>) {
        match self {
            Self::One(layer) => (layer, layer.checked_add(1)),
            Self::Range(first, end) => (first, Some(end)),
            Self::From(first) => (first, None),
        }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(layer) => write!(f, "{layer}"),
            Self::Range(first, end) => write!(f, "{first}..{end}"),
            Self::From(first) => write!(f, "{first}.."),
        }
    }
}

impl From<usize> for Layers {
    fn from(layer: usize) -> Self {
        Self::One(layer)
    }
}

impl Serialize for Layers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::One(layer) => layer.serialize(serializer),
            Self::Range(..) | Self::From(_) => serializer.collect_str(self),
        }
    }
}

impl JsonSchema for Layers {
    fn schema_name() -> Cow<'static, str> {
        "Layers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description":
                "a layer (3), a range without its end (\"2..30\"), or a layer and all later ones \
                 (\"30..\")",
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": "^[0-9]+\\.\\.[0-9]*$" },
            ],
        })
    }
}

struct LayersVisitor;

impl de::Visitor<'_> for LayersVisitor {
    type Value = Layers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a layer (3), a range without its end (\"2..30\"), or a layer and all later ones \
             (\"30..\")",
        )
    }

    fn visit_u64<E: de::Error>(self, layer: u64) -> Result<Layers, E> {
        let number = usize::try_from(layer).map(Layers::One);
        number.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(layer), &self))
    }

    fn visit_i64<E: de::Error>(self, layer: i64) -> Result<Layers, E> {
        match u64::try_from(layer) {
            Ok(layer) => self.visit_u64(layer),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(layer), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Layers, E> {
        let unreadable = || E::invalid_value(de::Unexpected::Str(text), &self);
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| unreadable());
        let (first, end) = text.split_once("..").ok_or_else(unreadable)?;
        let first = number(first)?;
        if end.trim().is_empty() {
            return Ok(Layers::From(first));
        }
        match number(end)? {
            end if first < end => Ok(Layers::Range(first, end)),
            _ => Err(E::custom(format!("no layer is in \"{text}\": a range excludes its end"))),
        }
    }
}

impl<'de> Deserialize<'de> for Layers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LayersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Layers, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn layers_are_read_and_written() {
        for (text, inside, outside) in [
            ("3", vec![3], vec![0, 2, 4]),
            ("\"2..30\"", vec![2, 29], vec![0, 1, 30, 31]),
            ("\"30..\"", vec![30, 31, usize::MAX], vec![0, 29]),
        ] {
            let layers = read(text).unwrap();
            assert_eq!(serde_json::to_string(&layers).unwrap(), text);
            assert!(inside.into_iter().all(|layer| layers.contains(layer)), "{text}");
            assert!(!outside.into_iter().any(|layer| layers.contains(layer)), "{text}");
        }
        for bad in ["-1", "1.5", "\"3\"", "\"..4\"", "\"2..=4\"", "\"a..b\"", "\"2...4\"", "true"] {
            assert!(read(bad).unwrap_err().contains("a layer (3), a range"), "{bad}");
        }
        for empty in ["\"4..4\"", "\"7..3\""] {
            assert!(read(empty).unwrap_err().contains("no layer is in"), "{empty}");
        }
    }

    #[test]
    fn layers_in_common_are_found() {
        let common = |a, b| read(a).unwrap().first_common(read(b).unwrap());
        assert_eq!(common("\"2..30\"", "\"29..\""), Some(29));
        assert_eq!(common("\"2..30\"", "\"30..\""), None);
        assert_eq!(common("5", "\"2..30\""), Some(5));
        assert_eq!(common("1", "\"2..30\""), None);
        assert_eq!(common("\"9..\"", "\"2..\""), Some(9));
        assert_eq!(common("7", "7"), Some(7));
    }
}
