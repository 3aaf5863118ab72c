//! How many bits the code of a part has, checked where it is read.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The bits of one part's code, 1 to 8: there are `2^bits` centroids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct PartBits(u8);

impl PartBits {
    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }

    /// How many centroids have such a code.
    pub(super) fn centroids(self) -> usize {
        1 << self.0
    }
}

impl Default for PartBits {
    /// 6, as the authors have.
    fn default() -> Self {
        Self(6)
    }
}

impl TryFrom<u64> for PartBits {
    type Error = String;

    fn try_from(bits: u64) -> Result<Self, String> {
        match u8::try_from(bits) {
            Ok(bits @ 1..=8) => Ok(Self(bits)),
            _ => Err(format!("the code of a part has 1 to 8 bits, got {bits}")),
        }
    }
}

impl From<PartBits> for u64 {
    fn from(bits: PartBits) -> Self {
        bits.0.into()
    }
}

impl JsonSchema for PartBits {
    fn schema_name() -> Cow<'static, str> {
        "PartBits".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": 8 })
    }
}
