//! Pooling of votes over neighbours.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema, Schema, SchemaGenerator, json_schema};

/// Odd number of neighbouring tokens, the token itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct PoolWidth(usize);

impl Default for PoolWidth {
    /// Returns the width of the authors' code, 5.
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u64> for PoolWidth {
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

impl From<PoolWidth> for u64 {
    fn from(odd: PoolWidth) -> Self {
        odd.0 as Self
    }
}

impl JsonSchema for PoolWidth {
    fn schema_name() -> Cow<'static, str> {
        "PoolWidth".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "not": { "multipleOf": 2 } })
    }
}

/// Pooling of a vote with its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// Mean; votes beyond the ends are 0.
    #[default]
    Mean,
    /// Maximum.
    Max,
}

impl Pooling {
    /// Pools each vote with its neighbours, `[votes]`. O(votes · width).
    pub(super) fn pool(self, votes: &[f64], width: PoolWidth) -> Vec<f32> {
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
