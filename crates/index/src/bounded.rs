//! Small whole numbers within limits, which deserialization checks.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// A whole number from `MIN` to `MAX`, with the default `DEFAULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Bounded<const MIN: u8, const MAX: u8, const DEFAULT: u8>(u8);

impl<const MIN: u8, const MAX: u8, const DEFAULT: u8> Bounded<MIN, MAX, DEFAULT> {
    /// Creates a number.
    ///
    /// # Panics
    /// If the number is not within the limits; in a constant, compilation fails.
    pub const fn new(number: u8) -> Self {
        assert!(MIN <= number && number <= MAX, "within the limits");
        Self(number)
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl<const MIN: u8, const MAX: u8, const DEFAULT: u8> Default for Bounded<MIN, MAX, DEFAULT> {
    fn default() -> Self {
        const { Self::new(DEFAULT) }
    }
}

impl<const MIN: u8, const MAX: u8, const DEFAULT: u8> TryFrom<u64> for Bounded<MIN, MAX, DEFAULT> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match u8::try_from(number) {
            Ok(number) if MIN <= number && number <= MAX => Ok(Self(number)),
            _ => Err(format!("must be a whole number from {MIN} to {MAX}, got {number}")),
        }
    }
}

impl<const MIN: u8, const MAX: u8, const DEFAULT: u8> From<Bounded<MIN, MAX, DEFAULT>> for u64 {
    fn from(number: Bounded<MIN, MAX, DEFAULT>) -> Self {
        number.0.into()
    }
}

impl<const MIN: u8, const MAX: u8, const DEFAULT: u8> JsonSchema for Bounded<MIN, MAX, DEFAULT> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Bounded{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_within_the_limits_are_read() {
        type Small = Bounded<1, 8, 6>;
        for number in 1..=8 {
            let small = Small::try_from(number).unwrap();
            assert_eq!(u64::from(small), number);
            assert_eq!(serde_json::from_str::<Small>(&number.to_string()).unwrap(), small);
        }
        for bad in ["0", "9", "264", "-1", "1.5"] {
            assert!(serde_json::from_str::<Small>(bad).is_err(), "{bad}");
        }
        let error = Small::try_from(264).unwrap_err();
        assert_eq!(error, "must be a whole number from 1 to 8, got 264");
        assert_eq!(Small::default().get(), 6);
    }
}
