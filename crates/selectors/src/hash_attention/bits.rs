//! How many bits a code has, checked where it is read.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The signs in a code, 1 to 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Bits(u8);

impl Bits {
    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Words that hold a code.
    pub(super) fn words(self) -> usize {
        usize::from(self.0).div_ceil(32)
    }
}

impl Default for Bits {
    /// 32, as the authors have.
    fn default() -> Self {
        Self(32)
    }
}

impl TryFrom<u64> for Bits {
    type Error = String;

    fn try_from(bits: u64) -> Result<Self, String> {
        match u8::try_from(bits) {
            Ok(bits @ 1..=128) => Ok(Self(bits)),
            _ => Err(format!("a code has 1 to 128 bits, got {bits}")),
        }
    }
}

impl From<Bits> for u64 {
    fn from(bits: Bits) -> Self {
        bits.0.into()
    }
}

impl JsonSchema for Bits {
    fn schema_name() -> Cow<'static, str> {
        "Bits".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": 128 })
    }
}
