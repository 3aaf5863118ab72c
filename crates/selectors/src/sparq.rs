//! `sparq`: the tokens with the largest scores by those channels of their keys in which the query is largest.
//!
//! Of a query the `channels` numbers of largest magnitude, `C`, hold most of a product. A token scores
//!
//! ```text
//! z = √(‖q‖₁ / ‖q_C‖₁) · Σ_{c ∈ C} q_c k_c          ‖·‖₁: sum of magnitudes
//! ```
//!
//! and the `size` best among the tokens not yet taken are taken, lower index first among equals. The factor is
//! the authors' temperature: a logit as large as `C` alone tells. With `score = "group"` all query heads of a KV head
//! have one `C`, the channels in which their magnitudes have the largest sum, and a token scores
//! `ln Σ softmax(z)`, summed over the heads, each softmax over the visible tokens.
//!
//! Cost: O(visible · channels) per query head, of which `2 · channels` bytes per token are read; an index of
//! `2 · head_dim` bytes per token. The index is a second copy of the keys, channel by channel, which the authors keep,
//! too; here in bf16, which all query heads and steps share.
//!
//! # Guarantee
//! None by itself: nothing is known of the other channels. A sample of the rest makes one, as after any selector.
//!
//! Departures from the paper: this is its selection alone. What it leaves, the authors may replace by the mean of all values, with
//! the share of the attention that the scores leave for it. No token is read for that, nor drawn, so it has no probability, and it
//! is no pick. A sample of the rest stands in its place: its mean error is known. The authors leave their correction out
//! for models with grouped queries, where it did harm. The last tokens, which they always take, are the selector `window`.
//!
//! Ribar, Chelombiev, Hudlass-Galley, Blake, Luschi, Orr (2024), "SparQ Attention: Bandwidth-Efficient LLM
//! Inference", <https://arxiv.org/abs/2312.04985>.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::Tunable,
    register,
    step::{Score, exponentials, largest, sum, take_logarithms},
    typetag,
};

use vattention_index::Columns;

/// The tokens with the largest scores by the channels in which the query is largest.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SparQ {
    /// How many tokens, beside those already taken.
    pub size: Size,
    /// How many channels are scored; absent: a quarter of the key's, as the authors' 32 of 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<NonZeroUsize>,
    /// Whose channels and scores count.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "sparq")]
impl SelectorConfig for SparQ {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::built("sparq", self.worker(site))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl SparQ {
    fn worker(&self, site: &Site) -> Result<SparqSelector, String> {
        let dim = site.shape.head_dim;
        let channels = self.channels.map_or((dim / 4).max(1), NonZeroUsize::get);
        if channels > dim {
            return Err(format!("`channels` is {channels}: expected at most {dim}, as keys have"));
        }
        Ok(SparqSelector { size: self.size, channels, score: self.score, keys: Columns::new(dim) })
    }
}

#[derive(Clone, Debug)]
struct SparqSelector {
    size: Size,
    channels: usize,
    score: Score,
    /// `[head_dim][tokens]`.
    keys: Columns,
}

impl SparqSelector {
    /// The score of each visible token.
    fn scores(&self, row: &Row<'_>) -> Vec<f32> {
        match self.score {
            Score::Head => self.logits(row.query(), &self.largest(row.query()), row.visible()),
            Score::Group => self.scores_of_group(row),
        }
    }

    /// What all query heads together score.
    fn scores_of_group(&self, row: &Row<'_>) -> Vec<f32> {
        let channels = self.largest(&magnitudes(row));
        let logits = |member: Row<'_>| self.logits(member.query(), &channels, row.visible());
        let mut of_heads: Vec<Vec<f32>> = row.members().map(logits).collect();
        for logits in &mut of_heads {
            normalise(logits);
        }
        let mut most = of_heads[0].clone();
        for logits in &of_heads[1..] {
            for (most, &logit) in most.iter_mut().zip(logits) {
                *most = if logit > *most { logit } else { *most };
            }
        }
        let mut sums = vec![0.0; row.visible()];
        for logits in &mut of_heads {
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

    /// The channels of largest magnitude, ascending; the lower among equals.
    fn largest(&self, numbers: &[f32]) -> Vec<usize> {
        let magnitudes: Vec<f32> = numbers.iter().map(|x| x.abs()).collect();
        let mut largest = Picks::new(magnitudes.len());
        largest.take_top(self.channels, &magnitudes);
        largest.iter().collect()
    }

    /// The logits of the visible tokens, as some channels tell them.
    fn logits(&self, query: &[f32], channels: &[usize], visible: usize) -> Vec<f32> {
        let (all, some) = (norm(query.iter()), norm(channels.iter().map(|&c| &query[c])));
        let factor = if some > 0.0 { (all / some).sqrt() } else { 1.0 };
        let mut logits = vec![0.0; visible];
        for &channel in channels {
            self.keys.add_multiple(channel, factor * query[channel], &mut logits);
        }
        logits
    }
}

/// The magnitudes of each channel, summed over the query heads, `[head_dim]`.
fn magnitudes(row: &Row<'_>) -> Vec<f32> {
    row.group().columns().into_iter().map(|channel| norm(channel.iter())).collect()
}

/// The sum of magnitudes.
fn norm<'a>(numbers: impl Iterator<Item = &'a f32>) -> f32 {
    numbers.map(|x| x.abs()).sum()
}

/// Turns logits into the logarithms of their softmax, the same on every machine.
fn normalise(logits: &mut [f32]) {
    let most = largest(logits);
    let total = sum(&exponentials(logits, most.into(), 1.0));
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

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.keys.bytes()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_top(self.size.to_tokens(row.visible()), &self.scores(row));
    }
}

register!(
    Selector,
    "sparq",
    SparQ,
    "the largest scores by the channels in which the query is largest"
);

#[cfg(test)]
mod tests;
