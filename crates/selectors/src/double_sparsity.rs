//! `double-sparsity`: the tokens with the largest scores over a few quantised channels of their
//! keys.
//!
//! The `channels` most important channels `C` of a head form a label of each key. The numbers of a
//! label are quantised to `label_bits` bits on a grid of the label's own. A token's score is
//!
//! ```text
//! Σ_{c ∈ C} q_c · label_c     label = base + step · code,  step = (max − min) / (2^label_bits − 1)
//! ```
//!
//! The selector picks the `size` best tokens not yet picked; ties go to the lower index.
//! With `score = "group"` scores are summed over the group's query heads.
//!
//! With `labels = "head"` each query head has its own channels, as in the authors' ranking, and
//! every key has one label per query head of the group. With `labels = "group"` all query heads of
//! a KV head use the same channels, and a key has one label.
//!
//! # Calibration
//! A JSON file in the authors' format. For layer `l` of the model, it has a list for each head. The
//! list contains all channels, the most important first:
//!
//! ```text
//! model.layers.{l}.self_attn.{qk,q,k}_proj          [query heads][head_dim]
//! model.layers.{l}.self_attn.{qk,q,k}_proj_group    [KV heads][head_dim]
//! ```
//!
//! The importance of a channel is the mean of `|q_c k_c|`, `|q_c|` or `|k_c|`. For `_proj_group`,
//! which the authors do not have, the importance is summed over the group's query heads.
//! `labels = "group"` reads `_proj_group`, or `_proj` where each KV head has one query head;
//! `labels = "head"` reads `_proj`.
//!
//! Cost: O(visible · channels) per row. The index takes `channels · label_bits / 8 + 8` bytes per
//! token and label (`4 · channels` with exact labels), with the bits rounded up to a power of two.
//!
//! # Guarantee
//! The selector alone guarantees nothing: a score is within `step / 2 · Σ_C |q_c|` of the product
//! over the channels `C`, and the other channels are not bounded. As with any selector, a sample of
//! the other tokens adds a guarantee.
//!
//! Yang, Sheng, Gonzalez, Stoica, Zheng (2024), "Post-Training Sparse Attention with Double
//! Sparsity", <https://arxiv.org/abs/2408.07092>. The authors quantise queries as well; here, that
//! would lose accuracy and save nothing.

mod calibration;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens, plugin::Tunable,
    register, step::Score, typetag,
};

use crate::index_scope::{IndexScope, counted_members};
use crate::predicted_logits::take_top_predicted;
use vattention_index::{LabelBits, Labels, Rounding, Term};

/// Tokens with the largest scores over a few quantised channels of their keys.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DoubleSparsity {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Channels by importance: path of a JSON file, relative to the pipeline file.
    #[schemars(extend("format" = "path"))]
    pub calibration: PathBuf,
    /// Number of channels in the label of a key.
    #[serde(default = "default_channels")]
    pub channels: NonZeroUsize,
    /// Bits per number of a label, 1 to 8, or 0 for exact numbers.
    #[serde(default = "default_bits")]
    pub label_bits: LabelBits,
    /// Measure of importance, which chooses among the lists of the file.
    #[serde(default)]
    pub by: Importance,
    /// Query heads that share channels and labels.
    #[serde(default)]
    pub labels: IndexScope,
    /// Scores to rank by: each query head's own, or the sum over its group.
    #[serde(default)]
    pub score: Score,
}

/// Measure of a channel's importance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Importance {
    /// Products of queries with the keys of the same token.
    #[default]
    Qk,
    /// Queries.
    Q,
    /// Keys.
    K,
}

fn default_channels() -> NonZeroUsize {
    const { NonZeroUsize::new(16).expect("positive") }
}

fn default_bits() -> LabelBits {
    const { LabelBits::new(4) }
}

#[typetag::serde(name = "double-sparsity")]
impl SelectorConfig for DoubleSparsity {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::box_selector("double-sparsity", self.build_selector(site))
    }

    fn check(&self) -> Result<()> {
        crate::name_error("double-sparsity", calibration::check_file(&self.calibration))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl DoubleSparsity {
    fn build_selector(&self, site: &Site) -> Result<DoubleSparsitySelector, String> {
        let group = site.shape.group();
        let index = |(i, channels): (usize, Vec<usize>)| LabelIndex {
            members: self.labels.members(i, group),
            labels: Labels::new(channels.len(), self.label_bits),
            channels: channels.into(),
        };
        let indexes = self.channels(site)?.into_iter().enumerate().map(index).collect();
        Ok(DoubleSparsitySelector { size: self.size, score: self.score, indexes })
    }

    /// Returns the channels of the labels at `site`: one list, or one per member.
    fn channels(&self, site: &Site) -> Result<Vec<Vec<usize>>, String> {
        let (count, dim) = (self.channels.get(), site.shape.head_dim);
        if count > dim {
            return Err(format!(
                "`channels` is {count}: expected at most {dim}, the channels of a key"
            ));
        }
        let mut lists = calibration::read(&self.calibration, site, self.by, self.labels)?;
        for list in &mut lists {
            list.truncate(count);
        }
        Ok(lists)
    }
}

/// Labels of all keys for one list of channels.
#[derive(Clone)]
struct LabelIndex {
    /// Members of the group that use the labels.
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
            let counted = counted_members(members, self.score, row);
            if counted.is_empty() {
                continue;
            }
            let weight =
                |channel: usize| counted.clone().map(|member| queries[[member, channel]]).sum();
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

    fn can_truncate(&self) -> bool {
        true
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.indexes.iter_mut().for_each(|index| index.labels.truncate(keys.len()));
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn share(&mut self) {
        self.indexes.iter_mut().for_each(|index| index.labels.share());
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.indexes.iter().map(|index| index.labels.bytes()).sum()
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
    "double-sparsity",
    DoubleSparsity,
    "the tokens with the largest scores over a few quantised channels of the keys"
);

#[cfg(test)]
mod tests;
