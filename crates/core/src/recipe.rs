//! What a selector does, told so that a machine can do it by itself.

use std::ops::Range;

use crate::Score;

/// How a selector picks tokens at one step, among those that nobody before it took.
#[derive(Clone, Debug)]
pub enum Recipe<'a> {
    /// It takes a range.
    Range(Range<usize>),
    /// It takes the `count` tokens with the largest `q·k`, lower index first among equals.
    TopLogits {
        /// How many.
        count: usize,
        /// Whose queries count.
        score: Score,
    },
    /// It takes the `count` tokens whose codes agree with the query's in the most bits, lower index
    /// first among equals.
    TopCodes {
        /// How many.
        count: usize,
        /// Whose queries count: of a group, the agreeing bits are summed over its members.
        score: Score,
        /// The codes.
        codes: HashCodes<'a>,
    },
}

/// Codes of keys and queries, packed into words, lowest bits first; bits beyond a code are 0.
#[derive(Clone, Debug)]
pub struct HashCodes<'a> {
    /// Bits of a code.
    pub bits: usize,
    /// Of all keys appended so far, `[words][tokens]`: one for all members, or one for each. The code
    /// of a key stays as it is, and the same selector's next recipe has it at the same place.
    pub keys: Vec<&'a [Vec<u32>]>,
    /// Of each member's query, `[members][words]`.
    pub queries: Vec<Vec<u32>>,
}

impl HashCodes<'_> {
    /// Words of a code.
    pub fn words(&self) -> usize {
        self.bits.div_ceil(32)
    }

    /// Which codes of keys a member's query is compared with.
    pub fn keys_of(&self, member: usize) -> usize {
        if self.keys.len() == 1 { 0 } else { member }
    }
}

impl Recipe<'_> {
    /// How many tokens it takes, if there are so many.
    pub fn count(&self) -> usize {
        match self {
            Self::Range(range) => range.len(),
            Self::TopLogits { count, .. } | Self::TopCodes { count, .. } => *count,
        }
    }

    /// The same among so many visible tokens: a range or a number beyond them is cut short.
    pub(crate) fn clipped(mut self, visible: usize) -> Self {
        match &mut self {
            Self::Range(range) => {
                *range = range.start.min(visible)..range.end.min(visible);
            }
            Self::TopLogits { count, .. } | Self::TopCodes { count, .. } => {
                *count = (*count).min(visible);
            }
        }
        self
    }

    /// Whether every query head of a group picks the same.
    pub fn group_wide(&self) -> bool {
        match self {
            Self::Range(_) => true,
            Self::TopLogits { score, .. } | Self::TopCodes { score, .. } => *score == Score::Group,
        }
    }
}
