//! `sparq`: the tokens with the largest scores over those channels of their keys in which the query
//! is largest.
//!
//! The `channels` numbers of largest magnitude of a query, in the channels `C`, contribute most of
//! its product with a key. A token's score is
//!
//! ```text
//! z = √(‖q‖₁ / ‖q_C‖₁) · Σ_{c ∈ C} q_c k_c          ‖·‖₁: sum of magnitudes
//! ```
//!
//! The selector picks the `size` best tokens not yet picked; ties go to the lower index. The factor
//! is the authors' temperature; it scales the product over `C` alone to the size of a logit.
//! With `score = "group"` all query heads of a KV head have one `C`, the channels in which the sum
//! of their magnitudes is largest, and a token's score is `ln Σ softmax(z)`, summed over the heads,
//! where each softmax is over the visible tokens.
//!
//! Cost: O(visible · channels) per query head, which reads `2 · channels` bytes per token.
//! The index takes `2 · head_dim` bytes per token. Like the authors' index, it is a second copy of
//! the keys, channel by channel; here it is in bf16 and shared by all query heads and steps.
//!
//! # Guarantee
//! The selector alone guarantees nothing: the other channels are not bounded. As with any selector,
//! a sample of the other tokens adds a guarantee.
//!
//! Departures from the paper: only its selection is implemented. The authors may replace the tokens
//! left over by the mean of all values, weighted by the share of the attention that the scores
//! leave for them. That mean neither reads nor draws a token, so that it has no inclusion
//! probability and is not a pick. Here a sample of the other tokens takes its place, whose error an
//! estimator bounds. The authors omit their correction for models with grouped-query attention,
//! where it was harmful. The authors always pick the last tokens; here the selector `window` does.
//!
//! Ribar, Chelombiev, Hudlass-Galley, Blake, Luschi, Orr (2024), "SparQ Attention:
//! Bandwidth-Efficient LLM Inference", <https://arxiv.org/abs/2312.04985>.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens,
    plugin::Tunable,
    register,
    step::{Score, exponentials, largest, sum, take_logarithms},
    typetag,
};

use crate::predicted_logits::take_top_predicted;
use vattention_index::Columns;

/// Tokens with the largest scores over the channels in which the query is largest.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SparQ {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of channels in a score; absent: a quarter of the channels of a key, like the authors'
    /// 32 of 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<NonZeroUsize>,
    /// Channels and scores to rank by: each query head's own, or those of its group.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "sparq")]
impl SelectorConfig for SparQ {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::box_selector("sparq", self.build_selector(site))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl SparQ {
    fn build_selector(&self, site: &Site) -> Result<SparqSelector, String> {
        let dim = site.shape.head_dim;
        let channels = self.channels.map_or((dim / 4).max(1), NonZeroUsize::get);
        if channels > dim {
            return Err(format!(
                "`channels` is {channels}: expected at most {dim}, the channels of a key"
            ));
        }
        Ok(SparqSelector { size: self.size, channels, score: self.score, keys: Columns::new(dim) })
    }
}

#[derive(Clone, Debug)]
struct SparqSelector {
    size: Size,
    channels: usize,
    score: Score,
    /// Index of the keys, `[head_dim][tokens]`.
    keys: Columns,
}

impl SparqSelector {
    /// Computes the score of each visible token.
    fn scores(&self, row: &Row<'_>) -> Vec<f32> {
        match self.score {
            Score::Head => {
                self.estimate_logits(row.query(), &self.largest(row.query()), row.visible())
            }
            Score::Group => self.group_scores(row),
        }
    }

    /// Computes the scores of all query heads of the group together.
    fn group_scores(&self, row: &Row<'_>) -> Vec<f32> {
        let channels = self.largest(&magnitudes(row));
        let logits = |member: Row<'_>| {
            let mut logits = self.estimate_logits(member.query(), &channels, row.visible());
            member.form().cap(&mut logits);
            normalise(&mut logits, member.sink_logit());
            logits
        };
        let mut head_logits: Vec<Vec<f32>> = row.members().map(logits).collect();
        let mut most = head_logits[0].clone();
        for logits in &head_logits[1..] {
            for (most, &logit) in most.iter_mut().zip(logits) {
                *most = if logit > *most { logit } else { *most };
            }
        }
        let mut sums = vec![0.0; row.visible()];
        for logits in &mut head_logits {
            for (logit, most) in logits.iter_mut().zip(&most) {
                *logit -= most;
            }
            for (sum, weight) in sums.iter_mut().zip(exponentials(logits, 0.0, 1.0)) {
                *sum += weight;
            }
        }
        take_logarithms(&mut sums);
        most.iter().zip(sums).map(|(most, sum)| most + sum as f32).collect()
    }

    /// Returns the channels of largest magnitude, ascending; ties go to the lower channel.
    fn largest(&self, numbers: &[f32]) -> Vec<usize> {
        let magnitudes: Vec<f32> = numbers.iter().map(|x| x.abs()).collect();
        let mut largest = Picks::new(magnitudes.len());
        largest.take_top(self.channels, &magnitudes);
        largest.iter().collect()
    }

    /// Estimates the logits of the visible tokens from some channels.
    fn estimate_logits(&self, query: &[f32], channels: &[usize], visible: usize) -> Vec<f32> {
        let (all, some) = (norm(query.iter()), norm(channels.iter().map(|&c| &query[c])));
        let factor = if some > 0.0 { (all / some).sqrt() } else { 1.0 };
        let mut logits = vec![0.0; visible];
        for &channel in channels {
            self.keys.add_multiple(channel, factor * query[channel], &mut logits);
        }
        logits
    }
}

/// Magnitudes of each channel, summed over the query heads, `[head_dim]`.
fn magnitudes(row: &Row<'_>) -> Vec<f32> {
    row.group().columns().into_iter().map(|channel| norm(channel.iter())).collect()
}

/// Sum of magnitudes.
fn norm<'a>(numbers: impl Iterator<Item = &'a f32>) -> f32 {
    numbers.map(|x| x.abs()).sum()
}

/// Turns logits into the logarithms of their softmax over the tokens and the attention sink, the
/// same on every machine.
fn normalise(logits: &mut [f32], sink: Option<f32>) {
    let sink = sink.unwrap_or(f32::NEG_INFINITY);
    let most = largest(logits).max(sink);
    let sink = libm::exp(f64::from(sink) - f64::from(most));
    let total = sum(&exponentials(logits, most.into(), 1.0)) + sink;
    let all = most + libm::log(total) as f32;
    for logit in logits {
        *logit -= all;
    }
}

impl Selector for SparqSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let mut key = vec![0.0; new.keys.dim()];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            self.keys.push(&key);
        }
    }

    fn can_truncate(&self) -> bool {
        true
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.keys.truncate(keys.len());
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn share(&mut self) {
        self.keys.share();
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.keys.bytes()
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let size = self.size.to_tokens(row.visible());
        take_top_predicted(row, picks, size, self.score, &self.scores(row));
    }
}

register!(
    Selector,
    "sparq",
    SparQ,
    "the tokens with the largest scores over the channels in which the query is largest"
);

#[cfg(test)]
mod tests;
