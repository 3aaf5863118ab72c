//! Whether query heads that share keys share an index of them.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};

/// Who has an index of the keys of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IndexOf {
    /// Every query head: a key is in as many as the group has query heads.
    #[default]
    QueryHead,
    /// The KV head: a key is in one.
    KvHead,
}
