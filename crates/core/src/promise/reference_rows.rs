//! Rows that errors are relative to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys and values of the attention that errors are relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReferenceRows {
    /// Rows of the cache, which are rounded to its number type.
    #[default]
    Stored,
    /// Rows that were appended, before they were rounded. Bounds include the effect of rounding.
    Unrounded,
}

impl ReferenceRows {
    /// Returns true for the rows of the cache.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub fn is_stored(&self) -> bool {
        *self == Self::Stored
    }
}
