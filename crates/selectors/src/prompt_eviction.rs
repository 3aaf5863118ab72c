//! `prompt-eviction`: the tokens of a prompt with the best scores, and all later tokens. Evicted
//! tokens never come back.
//!
//! When a prompt ends, each of its tokens gets a score (`score`), and the `size` tokens with the
//! highest scores are kept, among them the first `sink` tokens; ties go to the lower index. A
//! `size` given as a share is taken of the tokens so far. All later tokens are kept until another
//! prompt ends; then the tokens that are still kept are scored, and again `size` are kept. Without
//! any prompt nothing is evicted.
//!
//! With `k_i` and `v_i` for the key and the value of token `i`:
//!
//! ```text
//! "key-norm"            −|k_i|
//! "key-difference"      −cos(k_i, a)    a: mean of k_j / |k_j| over all kept tokens
//! "lag"                 rank of (s(k_i) + s(v_i)) / 2 within the token's partition
//! "expected-attention"  |v_i| · mean over the group of softmax_i(m_i + ½ u_i)
//! ```
//!
//! - **`lag`**: the tokens after the sink form partitions of `partition` tokens. The elements of a
//!   vector are scaled by their least and largest values in the next partition, `(x − least) /
//!   (largest − least)`, or set to 0 if these are equal; `s` is the softmax, within the partition,
//!   of the standard deviations of these elements. The last complete partition and the tokens
//!   after it are always kept, and so is a prompt of less than two partitions.
//! - **`expected-attention`**: `m_i` and `u_i` are the mean and the variance of the logit of token
//!   `i` over the last queries of the prompt. If future queries are Gaussian with the mean `μ` and
//!   the covariance `Σ` of these queries, then `E exp(q·k) = exp(μ·k + ½ kᵀΣk)`, whose exponent is
//!   `m_i + ½ u_i`.
//!
//! The first three scores need no query, so that a cache can be compressed before any is known.
//!
//! Picks are the kept tokens that are visible.
//!
//! Cost: O(kept) per row, without reading keys. The index takes 4 bytes per kept token. The end of
//! a prompt costs a pass over its keys (`lag`, `expected-attention`: and values), and with
//! `expected-attention` one row of logits for each prompt query and query head.
//!
//! # Memory
//! Keys and values of evicted tokens are freed with
//! [`Options::free_evicted`](vattention_core::Options::free_evicted) if nothing else in the
//! pipeline may read them.
//!
//! # Guarantee
//! The selector alone guarantees nothing: scores without queries do not know what a later query
//! attends to. By default, the backends of this workspace keep the keys and values of evicted
//! tokens, so that an estimator after the selector can sample them and make a promise, which
//! assumes that the sample reveals the tail of the remaining weights.
//!
//! Departures from the papers: tokens are evicted when a prompt ends, and not during decoding,
//! where the authors of `key-norm`, KeyDiff and LagKV evict, too. LagKV compresses each partition
//! once; here another prompt ranks all kept tokens again. Expected Attention predicts queries at
//! later positions, from hidden states and the mean rotary embedding of these positions; here the
//! observed queries stand for later ones. A soft cap applies to the logits of
//! `expected-attention`; attention sinks that a model has learned do not count.
//!
//! - `key-norm`: Devoto, Zhao, Scardapane, Minervini (2024), "A Simple and Effective L2 Norm-Based
//!   Strategy for KV Cache Compression", <https://arxiv.org/abs/2406.11430>.
//! - `key-difference`: Park et al. (2025), "KeyDiff: Key Similarity-Based KV Cache Eviction for
//!   Long-Context LLM Inference in Resource-Constrained Environments",
//!   <https://arxiv.org/abs/2504.15364>.
//! - `lag`: Liang et al. (2025), "LagKV: Lag-Relative Information of the KV Cache Tells Which
//!   Tokens Are Important", <https://arxiv.org/abs/2504.04704>.
//! - `expected-attention`: Devoto, Jeblick, Jégou (2025), "Expected Attention: KV Cache Compression
//!   by Estimating Attention from Future Queries Distribution",
//!   <https://arxiv.org/abs/2510.00636>.

mod scores;

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens,
    plugin::{PromptQueries, Tunable},
    register, typetag,
};

use crate::kept_tokens::KeptTokens;

/// Tokens of a prompt with the best scores, and all later tokens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptEviction {
    /// Number of tokens of the prompt that are kept, the first `sink` tokens included.
    pub size: Size,
    /// Score of a token.
    pub score: EvictionScore,
    /// Number of first tokens that are kept whatever their scores.
    #[serde(default = "default_sink")]
    pub sink: u16,
    /// Number of tokens in a partition of `score = "lag"`.
    #[serde(default = "default_partition")]
    pub partition: NonZeroU16,
}

/// Score by which the tokens of a prompt are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EvictionScore {
    /// The smallest key has the highest score.
    KeyNorm,
    /// The key least similar to the mean direction of all keys has the highest score (KeyDiff).
    KeyDifference,
    /// Key and value that vary most on the scale of the next tokens have the highest score (LagKV).
    Lag,
    /// The token with the most attention from queries distributed like the prompt's has the highest
    /// score (Expected Attention).
    ExpectedAttention,
}

/// Default of `sink`, that of kvpress.
fn default_sink() -> u16 {
    4
}

/// Default of `partition`, the authors' lag of 128 tokens.
fn default_partition() -> NonZeroU16 {
    const { NonZeroU16::new(128).unwrap() }
}

#[typetag::serde(name = "prompt-eviction")]
impl SelectorConfig for PromptEviction {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        let kept = KeptTokens::default();
        Ok(Box::new(PromptEvictionSelector { config: self.clone(), kept }))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

#[derive(Clone)]
struct PromptEvictionSelector {
    config: PromptEviction,
    kept: KeptTokens,
}

impl PromptEvictionSelector {
    /// Computes the scores of the kept tokens from the first one after the sink on. Later tokens
    /// than those that have a score are kept in any case.
    fn scores(&self, prompt: &PromptQueries<'_>, sink: usize) -> Vec<f32> {
        let kept = self.kept.tokens();
        let after_sink = &kept[sink..];
        match self.config.score {
            EvictionScore::KeyNorm => scores::key_norms(&prompt.keys, after_sink),
            EvictionScore::KeyDifference => {
                scores::key_differences(&prompt.keys, kept).split_off(sink)
            }
            EvictionScore::Lag => scores::lag_ranks(prompt, after_sink, self.config.partition),
            EvictionScore::ExpectedAttention => scores::expected_attention(prompt, after_sink),
        }
    }
}

impl Selector for PromptEvictionSelector {
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
        let size = self.config.size.to_tokens(prompt.keys.len());
        let kept = self.kept.tokens().len();
        if kept <= size {
            return;
        }
        let sink = size.min(self.config.sink.into());
        let scores = self.scores(prompt, sink);
        let unscored = sink + scores.len()..kept;
        let mut stay = Picks::new(kept);
        stay.take_range(0..sink);
        stay.take_range(unscored.clone());
        // The scores of tokens that stay in any case are not used.
        let mut padded = vec![0.0; kept];
        padded[sink..unscored.start].copy_from_slice(&scores);
        stay.take_top(size.saturating_sub(stay.len()), &padded);
        self.kept.retain(&stay);
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
    "prompt-eviction",
    PromptEviction,
    "the tokens of the prompt with the best scores by their keys and values, and all later ones; \
     evicts the others for good"
);

#[cfg(test)]
mod tests;
