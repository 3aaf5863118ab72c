//! Scope of an index of keys: one per query head, or one shared by the query heads of a KV head.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{Row, step::Score};

/// Query heads that share an index of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IndexScope {
    /// Each query head has its own index: a key is stored once per query head of the group.
    #[default]
    Head,
    /// All query heads of a KV head share one index: a key is stored once.
    Group,
}

impl IndexScope {
    /// Returns the members of a group of `group` query heads that use its `i`-th index.
    pub(crate) fn members(self, i: usize, group: usize) -> Range<usize> {
        match self {
            Self::Head => i..i + 1,
            Self::Group => 0..group,
        }
    }
}

/// Returns the members among `members` whose scores count for a row; may be empty.
pub(crate) fn counted_members(members: &Range<usize>, score: Score, row: &Row<'_>) -> Range<usize> {
    match score {
        Score::Group => members.clone(),
        Score::Head if members.contains(&row.member()) => row.member()..row.member() + 1,
        Score::Head => 0..0,
    }
}
