//! `scissorhands`: the tokens that have seldom received less than the average attention, and the most recent ones; what is
//! evicted never comes back.
//!
//! In each row of attention, over the tokens that are kept, a token is low if the mean of its weights over the query heads of the group is
//! below that of all tokens. Rows are those of a prompt's last queries, and of every step after it. Once more than
//! `size` tokens are kept after a prompt or a step, a `drop` share of `size` is evicted at once, beside what exceeds it: those that were low most often in
//! the last `history` rows, none of the last `recent`, the later token first among equals. So what is kept lies between `(1 − drop) size` and
//! `size`. A `size` that is a share is of all tokens that were visible so far. Until the first prompt or step, everything is kept.
//!
//! Picks are what is kept, as far as it is visible. Weights are normalised over what is kept, whatever else was read, so that neither a
//! sample nor other selectors change what is evicted.
//!
//! Cost: O(kept) per row and step, and O(kept · history / 64) where tokens are evicted; no key is read to choose; `4 + history / 8` bytes of index per
//! token kept. A prompt of P queries is P more rows of attention per query head.
//!
//! # Guarantee
//! None by itself, as after [`h2o`](crate::H2o): a token that was evicted and is needed later is lost, unless a sample of the evicted
//! ones follows.
//!
//! Departures from the paper: one set per KV head, for which its query heads vote together; rows begin with those of the prompt queries
//! that are shown; the average is over the tokens kept, where the paper has one over the number of the step.
//!
//! Liu, Desai, Liao, Wang, Xie, Xu, Kyrillidis, Shrivastava (2023), "Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM
//! KV Cache Compression at Test Time", <https://arxiv.org/abs/2305.17118>, algorithm 2.

mod history;

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{Attended, PromptQueries, Tunable},
    register, typetag,
};

use crate::kept::{KeptTokens, weights_of};
use crate::learned::each_row;
use history::History;

/// The tokens that have seldom received less than the average attention, and the most recent ones.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scissorhands {
    /// The most tokens that are kept.
    pub size: Size,
    /// How many of the last tokens are kept whatever attention they receive.
    #[serde(default = "recent")]
    pub recent: Size,
    /// How many of the last rows count.
    #[serde(default = "history")]
    pub history: NonZeroU16,
    /// The share of `size` that is evicted at once.
    #[serde(default = "half")]
    pub drop: Fraction,
}

fn recent() -> Size {
    Size::Tokens(10)
}

fn history() -> NonZeroU16 {
    const { NonZeroU16::new(400).unwrap() }
}

fn half() -> Fraction {
    Fraction::try_from(0.5).expect("0.5 is between 0 and 1")
}

#[typetag::serde(name = "scissorhands")]
impl SelectorConfig for Scissorhands {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(ScissorhandsSelector::new(self.clone(), site)))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

#[derive(Clone)]
struct ScissorhandsSelector {
    config: Scissorhands,
    kept: KeptTokens,
    /// Tokens that a query could have looked at.
    seen: usize,
    low: History,
    /// Sums of one row's weights over the query heads so far, of those kept.
    votes: Vec<f64>,
    members: usize,
}

impl ScissorhandsSelector {
    fn new(config: Scissorhands, site: &Site) -> Self {
        let low = History::new(config.history.get().into());
        let members = site.shape.group();
        Self { config, kept: KeptTokens::default(), seen: 0, low, votes: Vec::new(), members }
    }

    /// Adds the weights of one query head, over the first of those kept; the last head ends the row.
    fn vote(&mut self, member: usize, weights: impl Iterator<Item = f64>) {
        if member == 0 {
            self.votes.clear();
        }
        for (i, weight) in weights.enumerate() {
            match self.votes.get_mut(i) {
                Some(vote) => *vote += weight,
                None => self.votes.push(weight),
            }
        }
        if member + 1 == self.members {
            let average = self.members as f64 / self.votes.len() as f64;
            self.low.add(self.votes.iter().map(|&vote| vote < average));
        }
    }

    /// Evicts if more are kept than allowed, after a query that saw the first `seen` tokens.
    fn evict(&mut self, seen: usize) {
        self.seen = self.seen.max(seen);
        let size = self.config.size.to_tokens(self.seen);
        let recent = self.config.recent.to_tokens(self.seen);
        let (old, shown) = (self.kept.before(self.seen - recent), self.kept.before(self.seen));
        if shown <= size {
            return;
        }
        let left = size - (self.config.drop.get() * size as f64) as usize;
        let scores: Vec<f32> = (0..old).map(|place| -(self.low.count(place) as f32)).collect();
        let stay = self.kept.evict(old, left.saturating_sub(shown - old), &scores);
        self.low.keep(old, &stay);
    }
}

impl Selector for ScissorhandsSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.kept.append(new);
        self.low.resize(self.kept.tokens().len());
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let kept = self.kept.tokens().to_vec();
        let (mut member, members) = (0, self.members);
        each_row(prompt, usize::MAX, &kept, |_, weights| {
            self.vote(member, weights.iter().copied().map(f64::from));
            member = (member + 1) % members;
        });
        self.evict(prompt.keys.len());
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &Attended<'_>) {
        let visible = self.kept.before(row.visible());
        let weights = weights_of(&self.kept.tokens()[..visible], attended);
        let sum: f64 = weights.iter().copied().map(f64::from).sum();
        let share = |weight: f32| if sum > 0.0 { f64::from(weight) / sum } else { 0.0 };
        self.vote(row.member(), weights.into_iter().map(share));
        if row.member() + 1 == self.members {
            self.evict(row.visible());
        }
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn group_wide(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.kept.bytes() + self.low.bytes()
    }

    fn live(&self, live: &mut Picks) {
        self.kept.take(live);
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        self.kept.take(picks);
    }
}

register!(
    Selector,
    "scissorhands",
    Scissorhands,
    "what has seldom received less than the average attention, and the recent; the rest is gone for good"
);

#[cfg(test)]
mod tests;
