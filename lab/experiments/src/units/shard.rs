//! Which units a run computes.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// One of several shares of the work, counted from 1: `2/3` is the second of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
}

/// The units that a run may compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All.
    #[default]
    All,
    /// Those of a shard.
    Shard(Shard),
    /// None: everything must be known already, of so many shards, if it was computed by shards.
    Nothing {
        /// How many there are.
        shards: Option<usize>,
    },
}

impl Shard {
    /// The `number`-th of `of` shares; `None` unless `1 ≤ number ≤ of`.
    pub fn new(number: usize, of: usize) -> Option<Self> {
        (1..=of).contains(&number).then_some(Self { number, of })
    }

    /// Its number, from 1.
    pub fn number(self) -> usize {
        self.number
    }

    /// How many shares there are.
    pub fn of(self) -> usize {
        self.of
    }

    /// Its units of `total`: neighbours, because they have most in common, as a layer and its exact attention.
    pub fn units(self, total: usize) -> Range<usize> {
        let before = |shares: usize| (total as u128 * shares as u128 / self.of as u128) as usize;
        before(self.number - 1)..before(self.number)
    }

    /// Whether it has a unit if each has every `of`-th of them: where cost grows along their order, and
    /// neighbours have nothing in common.
    pub fn has_by_turns(self, unit: usize) -> bool {
        unit % self.of == self.number - 1
    }

    fn owner(of: usize, unit: usize, total: usize) -> usize {
        let shards = 1..=of;
        let before = |number: &usize| Self { number: *number, of }.units(total).end <= unit;
        // Shares are in order: a search by halves.
        let (mut low, mut high) = (*shards.start(), of);
        while low < high {
            let middle = usize::midpoint(low, high);
            if before(&middle) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

impl Part {
    /// Those of `total` units that may be computed.
    pub fn units(self, total: usize) -> Range<usize> {
        match self {
            Self::All => 0..total,
            Self::Shard(shard) => shard.units(total),
            Self::Nothing { .. } => 0..0,
        }
    }

    /// Whether a unit may be computed, if shards have them [by turns](Shard::has_by_turns).
    pub fn has_by_turns(self, unit: usize) -> bool {
        match self {
            Self::All => true,
            Self::Shard(shard) => shard.has_by_turns(unit),
            Self::Nothing { .. } => false,
        }
    }

    /// How many shards there are, if any.
    pub fn shards(self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Shard(shard) => Some(shard.of),
            Self::Nothing { shards } => shards,
        }
    }

    /// The number of the shard that a unit of `total` belongs to.
    pub(crate) fn shard_of(self, unit: usize, total: usize) -> Option<usize> {
        self.shards().map(|of| Shard::owner(of, unit, total))
    }

    /// The number of the shard that a unit belongs to, if they have them by turns.
    pub fn shard_by_turns(self, unit: usize) -> Option<usize> {
        self.shards().map(|of| unit % of + 1)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (number, of) = text.split_once('/')?;
            Self::new(number.parse().ok()?, of.parse().ok()?)
        };
        parse().ok_or_else(|| "expected i/n with i from 1 to n, as 2/3".into())
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}
