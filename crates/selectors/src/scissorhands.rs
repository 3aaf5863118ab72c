//! `scissorhands`: the tokens that seldom received less than the average attention, and the most
//! recent ones. Evicted tokens never come back.
//!
//! In each row of attention over the kept tokens, a token is low if the mean of its weights over
//! the query heads of the group is below the average over all kept tokens. The rows are those of a
//! prompt's last queries and of every later step. If more than `size` tokens are kept after a
//! prompt or a step, the excess and a further `drop` share of `size` are evicted together. The
//! evicted tokens are those that were low most often in the last `history` rows, except for the
//! last `recent` tokens; among equals the later token is evicted first. The number of kept tokens
//! then lies between `(1 − drop) size` and `size`. A `size` given as a share is taken of all tokens
//! visible so far. Until the first prompt or step, everything is kept.
//!
//! Picks are the kept tokens that are visible. Weights are normalised over the kept tokens and the
//! attention sink, whatever else was read, so that neither a sample nor other selectors change
//! which tokens are evicted.
//!
//! Cost: O(kept) per row and step, and O(kept · history / 64) when tokens are evicted, without
//! reading keys. The index takes `4 + history / 8` bytes per kept token. A prompt of P queries
//! costs P more rows of attention per query head.
//!
//! # Guarantee
//! As with [`h2o`](crate::H2o), the selector alone guarantees nothing: an evicted token that is
//! needed later is lost unless the evicted tokens are sampled afterwards.
//!
//! Departures from the paper: there is one set per KV head, for which its query heads vote
//! together; the first rows are those of the observed prompt queries; weights are compared with
//! their average over the kept tokens, where the paper uses `1 / t` at step `t`.
//!
//! Liu, Desai, Liao, Wang, Xie, Xu, Kyrillidis, Shrivastava (2023), "Scissorhands: Exploiting the
//! Persistence of Importance Hypothesis for LLM KV Cache Compression at Test Time",
//! <https://arxiv.org/abs/2305.17118>, algorithm 2.

mod history;

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{AttentionWeights, PromptQueries, Tunable},
    register, typetag,
};

use crate::kept_tokens::{KeptTokens, align_weights};
use crate::prompt_attention::for_each_row;
use history::History;

/// Tokens that seldom received less than the average attention, and the most recent ones.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scissorhands {
    /// Largest number of kept tokens.
    pub size: Size,
    /// Number of most recent tokens kept whatever attention they received.
    #[serde(default = "recent")]
    pub recent: Size,
    /// Number of most recent rows that count.
    #[serde(default = "history")]
    pub history: NonZeroU16,
    /// Share of `size` that is evicted together with the excess.
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

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct ScissorhandsSelector {
    config: Scissorhands,
    kept: KeptTokens,
    /// Largest number of tokens visible to a query so far.
    max_visible: usize,
    low: History,
    /// Sums of one row's weights over the query heads so far, one per kept token.
    votes: Vec<f64>,
    /// Sum of the votes. It is computed without rounding errors if there are no attention sinks.
    votes_sum: f64,
    members: usize,
}

impl ScissorhandsSelector {
    fn new(config: Scissorhands, site: &Site) -> Self {
        let low = History::new(config.history.get().into());
        let members = site.shape.group();
        Self {
            config,
            kept: KeptTokens::default(),
            max_visible: 0,
            low,
            votes: Vec::new(),
            votes_sum: 0.0,
            members,
        }
    }

    /// Adds the weights of one query head, over a prefix of the kept tokens, which sum to 1 with
    /// the weight of the attention `sink`. The last head ends the row.
    fn vote(&mut self, member: usize, weights: impl Iterator<Item = f64>, sink: f64) {
        if member == 0 {
            self.votes.clear();
            self.votes_sum = 0.0;
        }
        self.votes_sum += 1.0 - sink;
        for (i, weight) in weights.enumerate() {
            match self.votes.get_mut(i) {
                Some(vote) => *vote += weight,
                None => self.votes.push(weight),
            }
        }
        if member + 1 == self.members {
            let average = self.votes_sum / self.votes.len() as f64;
            self.low.add(self.votes.iter().map(|&vote| vote < average));
        }
    }

    /// Evicts tokens if too many are kept, after a query that saw the first `visible` tokens.
    fn evict(&mut self, visible: usize) {
        self.max_visible = self.max_visible.max(visible);
        let size = self.config.size.to_tokens(self.max_visible);
        let recent = self.config.recent.to_tokens(self.max_visible);
        let (old, visible) =
            (self.kept.before(self.max_visible - recent), self.kept.before(self.max_visible));
        if visible <= size {
            return;
        }
        let left = size - (self.config.drop.get() * size as f64) as usize;
        let scores: Vec<f32> = (0..old).map(|place| -(self.low.count(place) as f32)).collect();
        let stay = self.kept.evict(old, left.saturating_sub(visible - old), &scores);
        self.low.retain(old, &stay);
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
        for_each_row(prompt, usize::MAX, &kept, |row| {
            self.vote(member, row.weights.iter().copied().map(f64::from), row.sink);
            member = (member + 1) % members;
        });
        self.evict(prompt.keys.len());
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        let visible = self.kept.before(row.visible());
        let weights = align_weights(&self.kept.tokens()[..visible], attended);
        let sink = f64::from(attended.sink);
        let sum = sink + weights.iter().copied().map(f64::from).sum::<f64>();
        let share = |weight: f64| if sum > 0.0 { weight / sum } else { 0.0 };
        let weights = weights.into_iter().map(|weight| share(weight.into()));
        self.vote(row.member(), weights, share(sink));
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

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("learns from the steps of its own sequence")
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        self.kept.take(picks);
    }
}

register!(
    Selector,
    "scissorhands",
    Scissorhands,
    "the tokens that seldom received less than the average attention and the most recent; evicts \
     the others for good"
);

#[cfg(test)]
mod tests;
