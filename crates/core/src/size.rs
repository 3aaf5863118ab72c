//! Types of configuration fields, whose values are valid by construction.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroUsize;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of tokens, as written in a pipeline file: `128` is a number of tokens, `0.05` a share
/// of the visible tokens, and `{ share = 0.05, least = 32 }` a share, but at least 32 tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// A number of tokens, at least 1.
    Tokens(usize),
    /// A share of the visible tokens, strictly between 0 and 1.
    Share(Fraction),
    /// A share of the visible tokens, but at least a given number of tokens.
    ShareWithLeast(ShareWithLeast),
}

/// A share of the visible tokens, but at least a given number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareWithLeast {
    /// Share of the visible tokens, strictly between 0 and 1.
    pub share: Fraction,
    /// Smallest number of tokens, at least 1.
    pub least: NonZeroUsize,
}

impl Size {
    /// Number of tokens in a context of `visible` tokens. A share is `trunc(share · visible)`, but
    /// at least 1 or `least`. The result is at most `visible`.
    pub fn to_tokens(self, visible: usize) -> usize {
        let part = |share: Fraction| (share.get() * visible as f64) as usize;
        let tokens = match self {
            Self::Tokens(tokens) => tokens,
            Self::Share(share) => part(share).max(1),
            Self::ShareWithLeast(size) => part(size.share).max(size.least.get()),
        };
        tokens.min(visible)
    }

    /// Share of the visible tokens, unless the size is a number of tokens.
    pub fn share(self) -> Option<Fraction> {
        match self {
            Self::Tokens(_) => None,
            Self::Share(share) | Self::ShareWithLeast(ShareWithLeast { share, .. }) => Some(share),
        }
    }

    /// Multiplies the number of tokens, or the share, by a positive factor. The result is at least
    /// one token, and below all tokens. `least` stays the same.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |Fraction(share)| {
            Fraction((share * factor).clamp(f64::MIN_POSITIVE, 1.0 - f64::EPSILON))
        };
        match self {
            Self::Tokens(tokens) => {
                Self::Tokens(((tokens as f64 * factor).round() as usize).max(1))
            }
            Self::Share(share) => Self::Share(scale(share)),
            Self::ShareWithLeast(size) => {
                Self::ShareWithLeast(ShareWithLeast { share: scale(size.share), ..size })
            }
        }
    }

    /// Replaces the share, or the number of tokens, by another share. `least` stays the same.
    #[must_use]
    pub fn with_share(self, share: Fraction) -> Self {
        match self {
            Self::Tokens(_) | Self::Share(_) => Self::Share(share),
            Self::ShareWithLeast(size) => Self::ShareWithLeast(ShareWithLeast { share, ..size }),
        }
    }
}

/// A number strictly between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Fraction(f64);

impl Fraction {
    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Converts a percentage from 1 to below 100 to a share, and returns `None` for other numbers.
    /// A number below 1 is more likely to be a share already.
    pub fn from_percent(percent: f64) -> Option<Self> {
        let places = 1e12;
        (1.0..100.0).contains(&percent).then(|| Self((percent / 100.0 * places).round() / places))
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<f64> for Fraction {
    type Error = String;

    fn try_from(x: f64) -> Result<Self, String> {
        if 0.0 < x && x < 1.0 {
            Ok(Self(x))
        } else {
            let percent = Self::from_percent(x).map(|share| format!("; {x} % is {}", share.get()));
            Err(format!(
                "must lie strictly between 0 and 1, got {x}{}",
                percent.unwrap_or_default()
            ))
        }
    }
}

pub(crate) struct SizeVisitor;

impl<'de> de::Visitor<'de> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a whole number of tokens, at least 1 (128), or a share of the context strictly \
             between 0 and 1 (0.05)",
        )
    }

    fn visit_u64<E: de::Error>(self, tokens: u64) -> Result<Size, E> {
        match usize::try_from(tokens) {
            Ok(tokens) if tokens > 0 => Ok(Size::Tokens(tokens)),
            _ => Err(E::invalid_value(de::Unexpected::Unsigned(tokens), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, tokens: i64) -> Result<Size, E> {
        match u64::try_from(tokens) {
            Ok(tokens) => self.visit_u64(tokens),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(tokens), &self)),
        }
    }

    fn visit_f64<E: de::Error>(self, share: f64) -> Result<Size, E> {
        if share == 1.0 {
            return Err(E::custom(
                "1.0 is ambiguous: write `1` for one token, `0.01` for 1 %; for every token, leave \
                 out the selectors and the estimator",
            ));
        }
        Fraction::try_from(share)
            .map(Size::Share)
            .map_err(|_| E::invalid_value(de::Unexpected::Float(share), &self))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, table: A) -> Result<Size, A::Error> {
        let table = de::value::MapAccessDeserializer::new(table);
        ShareWithLeast::deserialize(table).map(Size::ShareWithLeast)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Tokens(tokens) => serializer.serialize_u64(tokens as u64),
            Self::Share(share) => share.serialize(serializer),
            Self::ShareWithLeast(size) => size.serialize(serializer),
        }
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let with_least = generator.subschema_for::<ShareWithLeast>();
        json_schema!({
            "description": "tokens (a whole number), or a share of the context (0.05)",
            "anyOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 },
                with_least,
            ],
        })
    }
}

impl JsonSchema for Fraction {
    fn schema_name() -> Cow<'static, str> {
        "Fraction".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 })
    }
}

struct FractionVisitor;

impl de::Visitor<'_> for FractionVisitor {
    type Value = Fraction;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number strictly between 0 and 1")
    }

    fn visit_f64<E: de::Error>(self, x: f64) -> Result<Fraction, E> {
        Fraction::try_from(x).map_err(|_| E::invalid_value(de::Unexpected::Float(x), &self))
    }

    fn visit_i64<E: de::Error>(self, x: i64) -> Result<Fraction, E> {
        Err(E::invalid_value(de::Unexpected::Signed(x), &self))
    }

    fn visit_u64<E: de::Error>(self, x: u64) -> Result<Fraction, E> {
        Err(E::invalid_value(de::Unexpected::Unsigned(x), &self))
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FractionVisitor)
    }
}

impl Serialize for Fraction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> Result<Size, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// Rule 2: a share is `trunc(share · visible)`, at least 1, and sizes are at most `visible`.
    #[test]
    fn sizes_follow_rule_2() {
        let share = |x| Size::Share(Fraction::try_from(x).unwrap());
        assert_eq!(share(0.05).to_tokens(510), 25);
        assert_eq!(share(0.999).to_tokens(10), 9);
        assert_eq!(share(0.001).to_tokens(10), 1);
        assert_eq!(Size::Tokens(128).to_tokens(100), 100);
        assert_eq!(Size::Tokens(128).to_tokens(1000), 128);
        assert_eq!(share(0.5).to_tokens(0), 0);
    }

    /// A share is at least `least` tokens, but never more than the context.
    #[test]
    fn a_share_with_a_least_number_is_at_least_that_number() {
        let size = size(r#"{ "share": 0.1, "least": 32 }"#).unwrap();
        let contexts = [0, 5, 44, 319, 330, 1000];
        assert_eq!(contexts.map(|tokens| size.to_tokens(tokens)), [0, 5, 32, 32, 33, 100]);
        let half = Fraction::try_from(0.5).unwrap();
        assert_eq!(size.share().map(Fraction::get), Some(0.1));
        assert_eq!([44, 100].map(|tokens| size.with_share(half).to_tokens(tokens)), [32, 50]);
        assert_eq!(Size::Tokens(7).with_share(half), Size::Share(half));
    }

    #[test]
    fn a_share_with_a_least_number_is_checked() {
        for (text, part) in [
            (r#"{ "share": 0.1 }"#, "missing field `least`"),
            (r#"{ "share": 1.5, "least": 3 }"#, "strictly between 0 and 1"),
            (r#"{ "share": 0.1, "least": 0 }"#, "nonzero"),
            (r#"{ "share": 0.1, "least": 3, "most": 9 }"#, "unknown field `most`"),
        ] {
            assert!(size(text).unwrap_err().contains(part), "{text}");
        }
    }

    #[test]
    fn one_is_a_token_and_one_point_zero_is_refused() {
        assert_eq!(size("1"), Ok(Size::Tokens(1)));
        assert!(size("1.0").unwrap_err().contains("ambiguous"));
        for bad in ["0", "-3", "0.0", "1.5", "-0.1", "\"128\"", "true"] {
            assert!(size(bad).unwrap_err().contains("a whole number of tokens"), "{bad}");
        }
    }

    #[test]
    fn a_percentage_becomes_a_share() {
        let share = |percent| Fraction::from_percent(percent).map(Fraction::get);
        assert_eq!([1.0, 1.1, 5.0, 99.0].map(share), [0.01, 0.011, 0.05, 0.99].map(Some));
        assert_eq!([-5.0, 0.0, 0.5, 100.0, f64::NAN].map(share), [None; 5]);
        assert!(Fraction::try_from(10.0).unwrap_err().ends_with("got 10; 10 % is 0.1"));
    }

    #[test]
    fn sizes_and_fractions_survive_a_round_trip() {
        for text in ["128", "0.05", r#"{"share":0.05,"least":32}"#] {
            assert_eq!(serde_json::to_string(&size(text).unwrap()).unwrap(), text);
        }
        for bad in ["0", "1", "0.0", "1.0", "2.5", "\"x\""] {
            assert!(serde_json::from_str::<Fraction>(bad).is_err(), "{bad}");
        }
    }
}
