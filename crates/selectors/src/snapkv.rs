//! `snapkv`: the tokens of a prompt to which its last queries attend, and all later tokens. Evicted
//! tokens never come back.
//!
//! When a prompt is observed, its last `window` queries vote for the tokens before the last
//! `window`:
//!
//! ```text
//! vote_i  = Σ over these queries and the group  exp(q·k_i) / Σ_j exp(q·k_j)    j up to the query
//! score_i = mean or maximum of vote_{i - pool/2} … vote_{i + pool/2}
//! ```
//!
//! The tokens of the best scores and the last `window` tokens are kept, `size` in all; ties go to
//! the lower index. A `size` given as a share is taken of the tokens so far and is never less than
//! the window; a `size` in tokens includes the window. As in the authors' code, votes beyond the
//! ends of the voted tokens are 0. All later tokens are kept until another prompt is observed, for
//! example that of another turn. The queries of that prompt vote for the tokens that are still
//! kept, pooling is over neighbours among the kept tokens, and again `size` tokens are kept.
//! Without any prompt nothing is evicted.
//!
//! Picks are the kept tokens that are visible.
//!
//! Cost: O(kept) per row, without reading keys. The index takes 4 bytes per kept token. A prompt
//! costs `window` rows of attention per query head.
//!
//! # Memory
//! Keys and values of evicted tokens are freed with
//! [`Options::free_evicted`](vattention_core::Options::free_evicted) if nothing else in the
//! pipeline may read them.
//!
//! # Guarantee
//! The selector alone guarantees nothing: tokens to which the last queries of the prompt did not
//! attend are lost, for example if the question comes after the prompt. By default, the backends of
//! this workspace keep the keys and values of evicted tokens, so that an estimator after `snapkv`
//! can sample them and make a promise, as after any selector. All keys and values must then be
//! stored, possibly in slower memory, so that SnapKV saves reads but no memory. The promise assumes
//! that the sample reveals the tail of the remaining weights. `snapkv` can violate this assumption,
//! because it evicts tokens that later queries need.
//!
//! Departures from the paper: its sets are per query head, with a copy of keys and values for each,
//! ours per KV head, with votes summed over the group; if fewer than `window` prompt queries are
//! observed, only these vote.
//!
//! Li, Huang, Yang, Venkitesh, Locatelli, Ye, Cai, Lewis, Chen (2024), "SnapKV: LLM Knows What You
//! are Looking for Before Generation", <https://arxiv.org/abs/2404.14469>.

mod pool;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens,
    plugin::{PromptQueries, Tunable},
    register, typetag,
};

use crate::kept_tokens::KeptTokens;
use crate::prompt_attention::for_each_row;

pub use pool::{PoolWidth, Pooling};

/// Tokens of a prompt to which its last queries attend, and all later tokens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapKv {
    /// Number of tokens of the prompt that are kept, the window included. A share is never less
    /// than the window.
    pub size: Size,
    /// Number of last prompt queries that vote, and of last tokens that are kept whatever the vote.
    #[serde(default = "window")]
    pub window: NonZeroUsize,
    /// Number of neighbouring tokens over which votes are pooled, an odd number; 1 disables
    /// pooling.
    #[serde(default)]
    pub pool: PoolWidth,
    /// Pooling of votes.
    #[serde(default)]
    pub pooling: Pooling,
}

/// Default of `window`, the authors' 32.
fn window() -> NonZeroUsize {
    NonZeroUsize::new(32).expect("32 is not 0")
}

impl SnapKv {
    /// Number of tokens kept among `tokens`: at least the window if the size is a share.
    fn kept_count(&self, tokens: usize) -> usize {
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

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct SnapkvSelector {
    config: SnapKv,
    kept: KeptTokens,
}

impl SnapkvSelector {
    /// Returns the votes of a prompt's last queries for the first `old` kept tokens, `[old]`.
    fn count_votes(&self, prompt: &PromptQueries<'_>, old: usize) -> Vec<f64> {
        let mut votes = vec![0.0; old];
        for_each_row(prompt, self.config.window.get(), self.kept.tokens(), |row| {
            votes
                .iter_mut()
                .zip(row.weights)
                .for_each(|(vote, &weight)| *vote += f64::from(weight));
        });
        votes
    }
}

impl Selector for SnapkvSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.kept.append(new);
    }

    fn can_truncate(&self) -> bool {
        true
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.kept.truncate(keys.len());
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let SnapKv { window, pool, pooling, .. } = &self.config;
        let tokens = prompt.keys.len();
        let size = self.config.kept_count(tokens);
        let recent = window.get().min(size);
        let old = self.kept.before(tokens - recent);
        if old > size - recent {
            let scores = pooling.pool(&self.count_votes(prompt, old), *pool);
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

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("learns from the prompt of its own sequence")
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        self.kept.take(picks);
    }
}

register!(
    Selector,
    "snapkv",
    SnapKv,
    "the tokens to which the last queries of the prompt attend, and all later ones; evicts the \
     others for good"
);

#[cfg(test)]
mod tests;
