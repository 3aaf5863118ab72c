//! `loki`: the tokens with the largest scores over the first principal components of the keys.
//!
//! Keys lie near a space of few dimensions. In a basis of principal components, the first `rank`
//! coordinates contribute most of the product of query and key. A token's score is their
//! contribution: `Σ_{i < rank} (basis q)_i (basis k)_i`. The selector picks the `size` best tokens
//! not yet picked; ties go to the lower index. With `score = "group"` scores are summed over the
//! group's query heads; the authors choose per query head.
//!
//! # Basis
//! A safetensors file with metadata `format = "vattention-loki/1"`. For layer `l` of the model, it
//! has in f32, f16 or bf16:
//!
//! ```text
//! layers.{l}.basis     [kv_heads, head_dim, head_dim]   row i: the i-th component, a unit vector
//! layers.{l}.variance  [kv_heads, head_dim]             variance of each component, falling
//! ```
//!
//! Cost: O(visible · rank) per query head. The index takes 2 · rank bytes per token. Appending a
//! token is O(rank · head_dim). The authors store rotated keys in the cache, so that their index
//! takes no memory. Here the cache holds the original keys, which every other selector reads, and
//! the coordinates are stored beside them in bf16. bf16 has the range of f32, and its rounding is
//! far smaller than the contribution of the other coordinates.
//!
//! # Guarantee
//! A score errs by at most `|q⊥| |k⊥|`, the product of the norms of the parts outside
//! the first coordinates, plus rounding. That error is too large for a bound on the tokens left
//! over; an estimator after the selector gives a guarantee for them.
//!
//! Singhania, Singh, He, Feizi, Bhatele (2024), "Loki: Low-rank Keys for Efficient Sparse
//! Attention", <https://arxiv.org/abs/2406.02542>.

mod basis;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens, plugin::Tunable,
    register, step::Score, typetag,
};

use crate::predicted_logits::take_top_predicted;
use vattention_index::Columns;

/// Tokens with the largest scores over the first principal components of the keys.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Loki {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of coordinates in a score; absent: a quarter of the elements of a key, like the
    /// authors' 32 of 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<NonZeroUsize>,
    /// Principal components of the keys: path of a safetensors file, relative to the pipeline file.
    #[schemars(extend("format" = "path"))]
    pub basis: PathBuf,
    /// Scores to rank by: each query head's own, or the sum over its group.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "loki")]
impl SelectorConfig for Loki {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::box_selector("loki", self.build_selector(site))
    }

    fn check(&self) -> Result<()> {
        crate::name_error("loki", basis::open(&self.basis).map(drop))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl Loki {
    fn build_selector(&self, site: &Site) -> Result<LokiSelector, String> {
        let dim = site.shape.head_dim;
        let rank = self.rank.map_or((dim / 4).max(1), NonZeroUsize::get);
        if rank > dim {
            return Err(format!("`rank` is {rank}: expected at most {dim}, the elements of a key"));
        }
        let basis = basis::read(&self.basis, site, rank)?.into();
        Ok(LokiSelector { size: self.size, score: self.score, basis, index: Columns::new(rank) })
    }
}

#[derive(Clone, Debug)]
struct LokiSelector {
    size: Size,
    score: Score,
    /// First components, `[rank, head_dim]`.
    basis: Arc<[f32]>,
    /// First coordinates of the keys, `[rank][tokens]`.
    index: Columns,
}

impl LokiSelector {
    /// Computes the first coordinates of a vector `[head_dim]`, `[rank]`.
    fn rotate(&self, vector: &[f32]) -> Vec<f32> {
        let rank = self.index.count();
        let mut out = vec![0.0; rank];
        Tokens::new(&self.basis, rank, vector.len()).dots(0..rank, vector, &mut out);
        out
    }

    /// Computes the score of each visible token.
    fn scores(&self, row: &Row<'_>) -> Vec<f32> {
        let query = match self.score {
            Score::Head => row.query().to_vec(),
            Score::Group => row.group_query(),
        };
        let mut scores = vec![0.0; row.visible()];
        for (column, weight) in self.rotate(&query).into_iter().enumerate() {
            self.index.add_multiple(column, weight, &mut scores);
        }
        scores
    }
}

impl Selector for LokiSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let mut key = vec![0.0; new.keys.dim()];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            self.index.push(&self.rotate(&key));
        }
    }

    fn can_truncate(&self) -> bool {
        true
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.index.truncate(keys.len());
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn share(&mut self) {
        self.index.share();
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.index.bytes()
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
    "loki",
    Loki,
    "the tokens with the largest scores over the keys' first principal components"
);

#[cfg(test)]
mod tests;
