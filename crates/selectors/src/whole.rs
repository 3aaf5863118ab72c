//! Small whole numbers within limits, checked where they are read.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// A whole number from `LEAST` to `MOST`, by default `USUAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Whole<const LEAST: u8, const MOST: u8, const USUAL: u8>(u8);

impl<const LEAST: u8, const MOST: u8, const USUAL: u8> Whole<LEAST, MOST, USUAL> {
    /// A number that is within the limits.
    ///
    /// # Panics
    /// If it is not; where the number is a constant, when that is compiled.
    pub const fn of(number: u8) -> Self {
        assert!(LEAST <= number && number <= MOST, "within the limits");
        Self(number)
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl<const LEAST: u8, const MOST: u8, const USUAL: u8> Default for Whole<LEAST, MOST, USUAL> {
    fn default() -> Self {
        const { Self::of(USUAL) }
    }
}

impl<const LEAST: u8, const MOST: u8, const USUAL: u8> TryFrom<u64> for Whole<LEAST, MOST, USUAL> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match u8::try_from(number) {
            Ok(number) if LEAST <= number && number <= MOST => Ok(Self(number)),
            _ => Err(format!("must be a whole number from {LEAST} to {MOST}, got {number}")),
        }
    }
}

impl<const LEAST: u8, const MOST: u8, const USUAL: u8> From<Whole<LEAST, MOST, USUAL>> for u64 {
    fn from(number: Whole<LEAST, MOST, USUAL>) -> Self {
        number.0.into()
    }
}

impl<const LEAST: u8, const MOST: u8, const USUAL: u8> JsonSchema for Whole<LEAST, MOST, USUAL> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Whole{LEAST}To{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": LEAST, "maximum": MOST })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_within_the_limits_are_read() {
        type Small = Whole<1, 8, 6>;
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
