//! `cluster-kv`: the tokens of the clusters whose mean keys have the largest scores.
//!
//! When a prompt ends, its tokens are clustered by the directions of their keys, with `cluster`
//! tokens per cluster on average. Every `block` later tokens are clustered by themselves, until
//! another prompt ends. A token's score is that of its cluster:
//!
//! ```text
//! score_i = q·c    c: mean key of the cluster of token i
//! ```
//!
//! The selector picks the `size` best tokens not yet picked, that is, whole clusters and the first
//! tokens of the last one; ties go to the lower index. Tokens after the last block that is wholly
//! visible are picked in addition. Without a prompt everything is picked.
//!
//! Cost: O(clusters · head_dim + visible) per query head. The index takes 4 bytes per token and
//! `4 · head_dim` per cluster, and holds the keys of the tokens after the last block. The end of a
//! prompt costs O(iterations · tokens · clusters · head_dim), and so does the end of a block, with
//! its tokens and clusters.
//!
//! # Guarantee
//! The selector alone guarantees nothing: a heavy token in a cluster of a small mean is not picked.
//! An estimator after the selector depends on its sample to reveal such tokens.
//!
//! Departures from the paper: k-means starts at random keys; the first 16 tokens, which the authors
//! leave out of the clusters and always read, are clustered with the others, so that a `sink`
//! should precede this selector; keys and values stay where they are, while the authors move
//! clusters between two memories.
//!
//! Liu, Li, Zhao, Zhang, Guo (2024), "ClusterKV: Manipulating LLM KV Cache in Semantic Space for
//! Recallable Compression", <https://arxiv.org/abs/2412.03213>.

use std::num::NonZeroU16;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::ndarray::ArrayView2;
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{PromptQueries, Tunable},
    register,
    step::Score,
    typetag,
};

use crate::direction_clusters::label_by_direction;
use crate::predicted_logits::take_top_predicted;
use vattention_index::clusters::Clusters;

/// Tokens of the clusters whose mean keys have the largest scores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterKv {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of tokens in a cluster, on average.
    #[serde(default = "default_cluster")]
    pub cluster: NonZeroU16,
    /// Number of tokens after the prompt that are clustered together.
    #[serde(default = "default_block")]
    pub block: NonZeroU16,
    /// Largest number of k-means iterations.
    #[serde(default = "default_iterations")]
    pub iterations: u16,
}

/// Default of `cluster`, the authors' 80.
fn default_cluster() -> NonZeroU16 {
    const { NonZeroU16::new(80).unwrap() }
}

/// Default of `block`, the authors' 320.
fn default_block() -> NonZeroU16 {
    const { NonZeroU16::new(320).unwrap() }
}

fn default_iterations() -> u16 {
    10
}

#[typetag::serde(name = "cluster-kv")]
impl SelectorConfig for ClusterKv {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.build_selector(site)))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

impl ClusterKv {
    fn build_selector(&self, site: &Site) -> ClusterKvSelector {
        let (config, site) = (self.clone(), *site);
        ClusterKvSelector { config, site, blocks: Vec::new(), open: Vec::new() }
    }
}

#[derive(Clone)]
struct ClusterKvSelector {
    config: ClusterKv,
    site: Site,
    /// Clusters of the prompt, and of each block of later tokens; empty before any prompt. Blocks
    /// never change, so that forks share them.
    blocks: Vec<Arc<ClusterBlock>>,
    /// Keys after the last block, `[tokens · head_dim]`.
    open: Vec<f32>,
}

/// Clustered tokens that follow each other.
struct ClusterBlock {
    tokens: usize,
    /// Clusters, with tokens numbered from the first of the block.
    clusters: Clusters,
}

impl ClusterKvSelector {
    /// Clusters keys `[tokens, head_dim]` as the next block.
    fn push_block(&mut self, keys: ArrayView2<'_, f32>) {
        let tokens = keys.nrows();
        let most = (tokens / usize::from(self.config.cluster.get())).max(1);
        let which = self.blocks.len();
        let labels = label_by_direction(keys, most, self.config.iterations, &self.site, which);
        self.blocks.push(Arc::new(ClusterBlock { tokens, clusters: Clusters::new(keys, &labels) }));
    }

    /// Computes the scores of the tokens in the prompt and in the blocks that are wholly visible.
    fn scores(&self, row: &Row<'_>) -> Vec<f32> {
        let mut scores = Vec::with_capacity(row.visible());
        for (i, block) in self.blocks.iter().enumerate() {
            let left = row.visible() - scores.len();
            if i > 0 && left < block.tokens {
                break;
            }
            let logits = block.clusters.logits(row.query());
            scores.extend(block.clusters.per_token(&logits, left.min(block.tokens)));
        }
        scores
    }
}

impl Selector for ClusterKvSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        if self.blocks.is_empty() {
            return;
        }
        let (dim, block) = (new.keys.dim(), usize::from(self.config.block.get()));
        let mut key = vec![0.0; dim];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            self.open.extend(&key);
            if self.open.len() == block * dim {
                let keys = std::mem::take(&mut self.open);
                let keys = ArrayView2::from_shape((block, dim), &keys).expect("a whole block");
                self.push_block(keys);
            }
        }
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let keys = prompt.keys.to_array(0..prompt.keys.len());
        self.blocks.clear();
        self.open.clear();
        self.push_block(keys.view());
    }

    fn needs_prompt(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.clusters.bytes()).sum()
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("clusters the keys of its own sequence")
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        self.config.tunable()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let visible = row.visible();
        let mut scores = self.scores(row);
        picks.take_range(scores.len()..visible);
        // The scores of picked tokens are not used.
        scores.resize(visible, 0.0);
        let size = self.config.size.to_tokens(visible);
        take_top_predicted(row, picks, size, Score::Head, &scores);
    }
}

register!(
    Selector,
    "cluster-kv",
    ClusterKv,
    "the tokens of the clusters whose mean keys have the largest scores"
);

#[cfg(test)]
mod tests;
