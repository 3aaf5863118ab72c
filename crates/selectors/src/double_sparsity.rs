//! `double-sparsity`: the tokens that score best by a few channels of their keys, quantised.
//!
//! Of each key the `channels` most important channels `C` of its head are kept as a label, with
//! `label_bits` bits each on a grid of the label's own, and a token scores
//!
//! ```text
//! Σ_{c ∈ C} q_c · label_c      label = base + step · code,  step = (max − min) / (2^label_bits − 1)
//! ```
//!
//! Takes the `size` best among the tokens not yet taken, lower index first among equals. With
//! `score = "group"` scores are summed over the group's query heads.
//!
//! With `labels = "head"` each query head has channels of its own, as the authors rank, and
//! every key a label for each query head of the group. With `labels = "group"` all query heads of
//! a KV head use the same channels, and a key has one label.
//!
//! # Calibration
//! A JSON file as the authors write it: for layer `l` of the model, a list for each head of all its
//! channels, the most important first,
//!
//! ```text
//! model.layers.{l}.self_attn.{qk,q,k}_proj          [query heads][head_dim]
//! model.layers.{l}.self_attn.{qk,q,k}_proj_group    [KV heads][head_dim]
//! ```
//!
//! A channel's importance is the mean of `|q_c k_c|`, `|q_c|` or `|k_c|`; for `_proj_group`, which is not
//! the authors', it is summed over the group's query heads. Only `labels = "group"` reads that,
//! and where each KV head has one query head, `_proj` in its place.
//!
//! Cost: O(visible · channels) per row; `channels · label_bits / 8 + 8` bytes of index per token and
//! label (`4 · channels` with exact ones), bits counted as the next power of two.
//!
//! # Guarantee
//! None by itself: a score is within `step / 2 · Σ_C |q_c|` of the product over the channels kept,
//! and nothing is known of the others. A sample of the rest makes one, as after any selector.
//!
//! Yang, Sheng, Gonzalez, Stoica, Zheng (2024), "Post-Training Sparse Attention with Double
//! Sparsity", <https://arxiv.org/abs/2408.07092>. The authors quantise queries as well; that saves
//! nothing here, and loses.

mod calibration;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, plugin::Tunable, register,
    step::Score, typetag,
};

use crate::index_of::{IndexOf, counting};
use vattention_index::{LabelBits, Labels, Rounding, Term};

/// The tokens that score best by a few channels of their keys, quantised.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DoubleSparsity {
    /// How many tokens, beside those already taken.
    pub size: Size,
    /// Channels by importance, a JSON file, relative to the pipeline file.
    #[schemars(extend("format" = "path"))]
    pub calibration: PathBuf,
    /// How many channels of a key its label has.
    #[serde(default = "authors_channels")]
    pub channels: NonZeroUsize,
    /// Bits of each number of a label, 1 to 8, or 0 for exact ones.
    #[serde(default = "authors_bits")]
    pub label_bits: LabelBits,
    /// Which of the file's lists.
    #[serde(default)]
    pub by: Importance,
    /// Whose channels make the labels.
    #[serde(default)]
    pub labels: IndexOf,
    /// Whose scores count.
    #[serde(default)]
    pub score: Score,
}

/// What makes a channel important.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Importance {
    /// Products of queries with their own token's keys.
    #[default]
    Qk,
    /// Queries.
    Q,
    /// Keys.
    K,
}

fn authors_channels() -> NonZeroUsize {
    const { NonZeroUsize::new(16).expect("positive") }
}

fn authors_bits() -> LabelBits {
    const { LabelBits::new(4) }
}

#[typetag::serde(name = "double-sparsity")]
impl SelectorConfig for DoubleSparsity {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::built("double-sparsity", self.worker(site))
    }

    fn check(&self) -> Result<()> {
        crate::named("double-sparsity", calibration::check_file(&self.calibration))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl DoubleSparsity {
    fn worker(&self, site: &Site) -> Result<DoubleSparsitySelector, String> {
        let group = site.shape.group();
        let index = |(i, channels): (usize, Vec<usize>)| LabelIndex {
            members: self.labels.members(i, group),
            labels: Labels::new(channels.len(), self.label_bits),
            channels: channels.into(),
        };
        let indexes = self.channels(site)?.into_iter().enumerate().map(index).collect();
        Ok(DoubleSparsitySelector { size: self.size, score: self.score, indexes })
    }

    /// The channels of the labels at `site`: one list, or one for each member.
    fn channels(&self, site: &Site) -> Result<Vec<Vec<usize>>, String> {
        let (kept, dim) = (self.channels.get(), site.shape.head_dim);
        if kept > dim {
            return Err(format!("`channels` is {kept}: expected at most {dim}, as keys have"));
        }
        let mut lists = calibration::read(&self.calibration, site, self.by, self.labels)?;
        for list in &mut lists {
            list.truncate(kept);
        }
        Ok(lists)
    }
}

/// Labels of all keys by one list of channels.
#[derive(Clone)]
struct LabelIndex {
    /// The members of the group that use them.
    members: Range<usize>,
    channels: Arc<[usize]>,
    labels: Labels,
}

#[derive(Clone)]
struct DoubleSparsitySelector {
    size: Size,
    score: Score,
    indexes: Vec<LabelIndex>,
}

impl DoubleSparsitySelector {
    fn scores(&self, row: &Row<'_>) -> Vec<f32> {
        let queries = row.group();
        let mut scores = vec![0.0; row.visible()];
        for LabelIndex { members, channels, labels } in &self.indexes {
            let counting = counting(members, self.score, row);
            if counting.is_empty() {
                continue;
            }
            let weight =
                |channel: usize| counting.clone().map(|member| queries[[member, channel]]).sum();
            let terms: Vec<Term> =
                channels.iter().map(|&channel| weight(channel)).enumerate().collect();
            labels.add_products(&terms, &mut scores);
        }
        scores
    }
}

impl Selector for DoubleSparsitySelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let mut key = vec![0.0; new.keys.dim()];
        let mut label = Vec::new();
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            for LabelIndex { channels, labels, .. } in &mut self.indexes {
                label.clear();
                label.extend(channels.iter().map(|&channel| key[channel]));
                labels.push(&label, Rounding::Nearest);
            }
        }
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.indexes.iter().map(|index| index.labels.bytes()).sum()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_top(self.size.of(row.visible()), &self.scores(row));
    }
}

register!(
    Selector,
    "double-sparsity",
    DoubleSparsity,
    "the largest scores by a few channels of the keys, quantised"
);

#[cfg(test)]
mod tests;
