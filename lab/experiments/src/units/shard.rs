//! Division of units among runs.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// One of several shards of the work, counted from 1: `2/3` is the second of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    count: usize,
}

/// Units that a run may compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All units.
    #[default]
    All,
    /// Units of a shard.
    Shard(Shard),
    /// No units: all results must be stored already.
    Nothing {
        /// Number of shards that computed the results, if the work was divided.
        shards: Option<usize>,
    },
}

impl Shard {
    /// Creates the `number`-th of `count` shards; `None` unless `1 ≤ number ≤ count`.
    pub fn new(number: usize, count: usize) -> Option<Self> {
        (1..=count).contains(&number).then_some(Self { number, count })
    }

    /// Number of this shard, from 1.
    pub fn number(self) -> usize {
        self.number
    }

    /// Number of shards.
    pub fn count(self) -> usize {
        self.count
    }

    /// Range of this shard's units among `total` units. A range is contiguous because neighbouring
    /// units share work, such as the exact attention of a layer.
    pub fn units(self, total: usize) -> Range<usize> {
        let before = |shards: usize| (total as u128 * shards as u128 / self.count as u128) as usize;
        before(self.number - 1)..before(self.number)
    }

    /// Returns true if this shard has a unit when units are interleaved: each shard has every
    /// `count`-th unit. Interleaving balances units whose cost grows along their order and that
    /// share no work.
    pub fn has_interleaved(self, unit: usize) -> bool {
        unit % self.count == self.number - 1
    }

    /// Finds the number of the shard whose range has a unit, by bisection.
    fn find_owner(count: usize, unit: usize, total: usize) -> usize {
        let ends_before = |number: usize| Self { number, count }.units(total).end <= unit;
        let (mut low, mut high) = (1, count);
        while low < high {
            let middle = usize::midpoint(low, high);
            if ends_before(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

impl Part {
    /// Range of the units that may be computed, among `total` units.
    pub fn units(self, total: usize) -> Range<usize> {
        match self {
            Self::All => 0..total,
            Self::Shard(shard) => shard.units(total),
            Self::Nothing { .. } => 0..0,
        }
    }

    /// Returns true if a unit may be computed, when units are
    /// [interleaved](Shard::has_interleaved).
    pub fn has_interleaved(self, unit: usize) -> bool {
        match self {
            Self::All => true,
            Self::Shard(shard) => shard.has_interleaved(unit),
            Self::Nothing { .. } => false,
        }
    }

    /// Number of shards, if the work is divided.
    pub fn shards(self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Shard(shard) => Some(shard.count),
            Self::Nothing { shards } => shards,
        }
    }

    /// Number of the shard that computes a unit of `total`, if the work is divided.
    pub(crate) fn shard_of(self, unit: usize, total: usize) -> Option<usize> {
        self.shards().map(|count| Shard::find_owner(count, unit, total))
    }

    /// Number of the shard that computes a unit, when units are interleaved.
    pub fn interleaved_shard(self, unit: usize) -> Option<usize> {
        self.shards().map(|count| unit % count + 1)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (number, count) = text.split_once('/')?;
            Self::new(number.parse().ok()?, count.parse().ok()?)
        };
        parse().ok_or_else(|| "expected i/n with i from 1 to n, as 2/3".into())
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}
