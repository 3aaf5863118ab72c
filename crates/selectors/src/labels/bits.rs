//! How many bits a number of a label has, checked where it is read.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Bits of a quantised number, 1 to 8, or 0 for exact ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct LabelBits(u8);

impl LabelBits {
    /// Numbers as they are.
    pub const EXACT: Self = Self(0);
    /// A byte for two numbers.
    pub const FOUR: Self = Self(4);

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u64> for LabelBits {
    type Error = String;

    fn try_from(bits: u64) -> Result<Self, String> {
        match u8::try_from(bits) {
            Ok(bits @ 0..=8) => Ok(Self(bits)),
            _ => Err(format!("a label's numbers have 1 to 8 bits, or 0 for exact, got {bits}")),
        }
    }
}

impl From<LabelBits> for u64 {
    fn from(bits: LabelBits) -> Self {
        bits.0.into()
    }
}

impl JsonSchema for LabelBits {
    fn schema_name() -> Cow<'static, str> {
        "LabelBits".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0, "maximum": 8 })
    }
}
