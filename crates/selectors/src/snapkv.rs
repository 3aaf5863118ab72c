//! `snapkv`: the tokens of a prompt that its last queries attend to, and everything after it; what
//! is evicted never comes back.
//!
//! When a prompt is shown, its last `window` queries vote for the tokens before the last `window`:
//!
//! ```text
//! vote_i  = Σ over these queries and the group  exp(q·k_i) / Σ_j exp(q·k_j)    j up to the query itself
//! score_i = mean or maximum of vote_{i - pool/2} … vote_{i + pool/2}
//! ```
//!
//! The best scores are kept, lower index first among equals, and the last `window` tokens, `size`
//! in all: a share is of the tokens so far, and never fewer than the window; of a `size` in tokens
//! the window is a part. Beyond the ends
//! of the voted tokens votes are 0, as the authors have it. Tokens that come later are all kept,
//! until another prompt is shown, of another turn, say: its queries vote among what is kept by
//! then, whose neighbours are those among the kept, and again `size` is kept. Without any prompt
//! nothing is evicted.
//!
//! Picks are what is kept, as far as it is visible.
//!
//! Cost: nothing per row but the list of what is kept, 4 bytes of index each; per prompt, `window`
//! rows of attention for each query head.
//!
//! # Memory
//! Keys and values of evicted tokens are freed with [`Options::free_evicted`](vattention_core::Options::free_evicted),
//! if nothing else in the pipeline may read them.
//!
//! # Guarantee
//! None by itself: what the last queries of the prompt did not look at is lost, as when the
//! question comes after it. The backends of this workspace leave the keys and values of evicted
//! tokens where they are, so that an estimator after `snapkv` can sample them, and its promise is
//! that of any estimator after any selector. The price is that all keys and values must be kept, in
//! a slower memory perhaps: SnapKV then saves reads, no longer memory. And the promise assumes that
//! the sample has seen the tail of what is left, where `snapkv` leaves what later queries ask for.
//!
//! Departures from the paper: its sets are of each query head, with a copy of keys and values for
//! each, ours of each KV head, with votes summed over its group; only the prompt queries that we
//! are shown vote, where they are fewer than `window`.
//!
//! Li, Huang, Yang, Venkitesh, Locatelli, Ye, Cai, Lewis, Chen (2024), "SnapKV: LLM Knows What You
//! are Looking for Before Generation", <https://arxiv.org/abs/2404.14469>.

mod pool;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{PromptQueries, Tunable},
    register, typetag,
};

use crate::kept::KeptTokens;
use crate::learned::each_row;

pub use pool::{Odd, Pooling};

/// The tokens of a prompt that its last queries attend to.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapKv {
    /// Number of tokens of the prompt that are kept, the window included; a share is never fewer
    /// than the window.
    pub size: Size,
    /// How many of the last prompt queries vote, and how many of the last tokens are kept whatever
    /// the vote.
    #[serde(default = "window")]
    pub window: NonZeroUsize,
    /// Over how many neighbouring tokens votes are pooled, an odd number; 1 is no pooling.
    #[serde(default)]
    pub pool: Odd,
    /// How votes are pooled.
    #[serde(default)]
    pub pooling: Pooling,
}

/// 32, as the authors have.
fn window() -> NonZeroUsize {
    NonZeroUsize::new(32).expect("32 is not 0")
}

impl SnapKv {
    /// Number of tokens kept of `tokens`: at least the window, if the size is a share.
    fn kept_of(&self, tokens: usize) -> usize {
        let least = self.size.share().map_or(0, |_| self.window.get());
        self.size.to_tokens(tokens).max(least).min(tokens)
    }
}

#[typetag::serde(name = "snapkv")]
impl SelectorConfig for SnapKv {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(SnapkvSelector { config: self.clone(), kept: KeptTokens::default() }))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

#[derive(Clone)]
struct SnapkvSelector {
    config: SnapKv,
    kept: KeptTokens,
}

impl SnapkvSelector {
    /// What the last queries of a prompt vote for the first `old` tokens kept, `[old]`.
    fn votes(&self, prompt: &PromptQueries<'_>, old: usize) -> Vec<f64> {
        let mut votes = vec![0.0; old];
        each_row(prompt, self.config.window.get(), self.kept.tokens(), |_, weights| {
            votes.iter_mut().zip(weights).for_each(|(vote, &weight)| *vote += f64::from(weight));
        });
        votes
    }
}

impl Selector for SnapkvSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.kept.append(new);
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let SnapKv { window, pool, pooling, .. } = &self.config;
        let tokens = prompt.keys.len();
        let size = self.config.kept_of(tokens);
        let recent = window.get().min(size);
        let old = self.kept.before(tokens - recent);
        if old > size - recent {
            let scores = pooling.pool(&self.votes(prompt, old), *pool);
            self.kept.evict(old, size - recent, &scores);
        }
    }

    fn needs_prompt(&self) -> bool {
        true
    }

    fn group_wide(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.kept.bytes()
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
    "snapkv",
    SnapKv,
    "what the last queries of the prompt attend to, and all after it; the rest is gone for good"
);

#[cfg(test)]
mod tests;
