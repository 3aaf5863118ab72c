//! What a selector does, as an operation that a device can execute by itself.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use crate::{Error, Network, Result, step::Score};

/// How a selector picks tokens at one step, among those that nobody before it took.
#[derive(Clone, Debug)]
pub enum SelectorOp<'a> {
    /// It takes a range.
    Range(Range<usize>),
    /// It takes the `count` tokens with the largest `q·k`, lower index first among equals.
    TopLogits {
        /// How many.
        count: usize,
        /// Whose queries count.
        score: Score,
    },
    /// It takes the `count` tokens of the pages whose keys can reach the largest products with the
    /// query, lower index first among equals: a page's product is the sum over channels of the larger
    /// one of the query with the page's least key and with its largest. Of the page in which the
    /// visible tokens end, visible keys alone count.
    TopPages {
        /// How many.
        count: usize,
        /// Whose queries count: of a group, the products are summed over its members.
        score: Score,
        /// Tokens of a page.
        page: NonZeroUsize,
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

/// Hash codes of keys and queries, by how they are made.
#[derive(Clone, Debug)]
pub struct HashCodes<'a> {
    /// One for all members, or one for each. A selector always tells the same ones.
    pub maps: Vec<&'a CodeMap>,
}

/// What makes codes that can be compared: bits, each the sign of a number that comes out of a network,
/// set if it is positive.
#[derive(Clone, Debug)]
pub struct CodeMap {
    query: Arc<Network>,
    key: Arc<Network>,
    scale: f32,
}

impl CodeMap {
    /// Of queries, divided by `scale`, and of keys.
    ///
    /// # Errors
    /// If the networks do not have as many inputs and outputs as each other.
    pub fn new(query: Arc<Network>, key: Arc<Network>, scale: f32) -> Result<Self> {
        let [of_query, of_key] =
            [&query, &key].map(|network| format!("{} to {}", network.inputs(), network.outputs()));
        if of_query != of_key {
            return Err(Error::shape("sizes of the network of keys", of_query, of_key));
        }
        Ok(Self { query, key, scale })
    }

    /// Bits of a code.
    pub fn bits(&self) -> usize {
        self.key.outputs()
    }

    /// The network of queries.
    pub fn query(&self) -> &Arc<Network> {
        &self.query
    }

    /// The network of keys.
    pub fn key(&self) -> &Arc<Network> {
        &self.key
    }

    /// A query `[head_dim]` as its network is given it.
    pub fn unscaled<'q>(&self, query: &'q [f32]) -> impl Iterator<Item = f32> + use<'q> {
        let scale = self.scale;
        query.iter().map(move |x| x / scale)
    }

    /// The numbers whose signs are the code of a query `[head_dim]`, `[bits]`.
    pub fn of_query(&self, query: &[f32]) -> Vec<f32> {
        self.query.of(&self.unscaled(query).collect::<Vec<_>>())
    }

    /// The numbers whose signs are the code of a key `[head_dim]`, `[bits]`.
    pub fn of_key(&self, key: &[f32]) -> Vec<f32> {
        self.key.of(key)
    }
}

impl HashCodes<'_> {
    /// Bits of a code.
    pub fn bits(&self) -> usize {
        self.maps.first().map_or(0, |map| map.bits())
    }

    /// Which map makes the codes that are compared with a member's query.
    pub fn map_of(&self, member: usize) -> usize {
        if self.maps.len() == 1 { 0 } else { member }
    }
}

impl SelectorOp<'_> {
    /// How many tokens it takes, if that many are visible.
    pub fn count(&self) -> usize {
        match self {
            Self::Range(range) => range.len(),
            Self::TopLogits { count, .. }
            | Self::TopPages { count, .. }
            | Self::TopCodes { count, .. } => *count,
        }
    }

    /// The same among `visible` tokens: a range or a number beyond them is cut short.
    pub(crate) fn clipped(mut self, visible: usize) -> Self {
        match &mut self {
            Self::Range(range) => {
                *range = range.start.min(visible)..range.end.min(visible);
            }
            Self::TopLogits { count, .. }
            | Self::TopPages { count, .. }
            | Self::TopCodes { count, .. } => {
                *count = (*count).min(visible);
            }
        }
        self
    }

    /// Whether every query head of a group picks the same.
    pub fn group_wide(&self) -> bool {
        match self {
            Self::Range(_) => true,
            Self::TopLogits { score, .. }
            | Self::TopPages { score, .. }
            | Self::TopCodes { score, .. } => *score == Score::Group,
        }
    }
}
