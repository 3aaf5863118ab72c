//! Pooling of votes over neighbours.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema, Schema, SchemaGenerator, json_schema};

/// An odd number of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Odd(usize);

impl Default for Odd {
    /// 5, as the authors' code has.
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u64> for Odd {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match usize::try_from(number) {
            Ok(odd) if odd % 2 == 1 => Ok(Self(odd)),
            _ => Err(format!(
                "must be odd, so that neighbours are alike on both sides, got {number}"
            )),
        }
    }
}

impl From<Odd> for u64 {
    fn from(odd: Odd) -> Self {
        odd.0 as Self
    }
}

impl JsonSchema for Odd {
    fn schema_name() -> Cow<'static, str> {
        "Odd".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "not": { "multipleOf": 2 } })
    }
}

/// What a vote and those beside it come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// Their mean; beyond the ends votes are 0.
    #[default]
    Mean,
    /// The largest of them.
    Max,
}

impl Pooling {
    /// Pools each vote with its neighbours, `[votes]`. O(votes · width).
    pub(super) fn pool(self, votes: &[f64], width: Odd) -> Vec<f32> {
        let half = width.0 / 2;
        let around =
            |i: usize| &votes[i.saturating_sub(half)..votes.len().min(i.saturating_add(half + 1))];
        let pooled = |i: usize| match self {
            Self::Mean => around(i).iter().sum::<f64>() / width.0 as f64,
            Self::Max => around(i).iter().copied().fold(0.0, f64::max),
        };
        (0..votes.len()).map(|i| pooled(i) as f32).collect()
    }
}
