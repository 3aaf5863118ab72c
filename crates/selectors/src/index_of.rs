//! Whether query heads that share keys share an index of them.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{Row, step::Score};

/// Who has an index of the keys of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IndexOf {
    /// Every query head: a key is in as many as the group has query heads.
    #[default]
    Head,
    /// The KV head: a key is in one.
    Group,
}

impl IndexOf {
    /// The members of a group of `group` query heads that use its `i`-th index.
    pub(crate) fn members(self, i: usize, group: usize) -> Range<usize> {
        match self {
            Self::Head => i..i + 1,
            Self::Group => 0..group,
        }
    }
}

/// Those of `members` whose scores count for a row, if any.
pub(crate) fn counting(members: &Range<usize>, score: Score, row: &Row<'_>) -> Range<usize> {
    match score {
        Score::Group => members.clone(),
        Score::Head if members.contains(&row.member()) => row.member()..row.member() + 1,
        Score::Head => 0..0,
    }
}
