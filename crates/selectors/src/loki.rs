//! `loki`: the tokens with the largest scores by the first principal components of the keys.
//!
//! Keys lie near a space of few dimensions. In a basis of principal components the first `rank`
//! coordinates hold most of a product, and a token scores that much of it:
//! `Σ_{i < rank} (basis q)_i (basis k)_i`. Takes the `size` best among the tokens not yet taken,
//! lower index first among equals.
//!
//! # Basis
//! A safetensors file with metadata `format = "vattention-loki/1"` and, for layer `l` of the model,
//! in f32, f16 or bf16,
//!
//! ```text
//! layers.{l}.basis     [kv_heads, head_dim, head_dim]   row i: the i-th component, a unit vector
//! layers.{l}.variance  [kv_heads, head_dim]             what it holds, falling
//! ```
//!
//! Cost: O(visible · rank) per query head, 2 · rank bytes of index per token; appending a token is
//! O(rank · head_dim). The authors keep rotated keys in the cache and have the index for nothing.
//! Here the cache holds keys as they came, which every other selector reads, so the coordinates are
//! kept beside them, in bf16: it has the range of f32, and its rounding is far below what the other
//! coordinates would add.
//!
//! # Guarantee
//! A score errs by at most `|q⊥| |k⊥|`, the norms of what the first coordinates leave out, beside
//! rounding. That is too much for a bound on what was not taken; an estimator after it promises
//! for what it leaves.
//!
//! The authors choose for each query head; `score = "group"` sums the scores of a group's heads.
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

use vattention_index::Columns;

/// The tokens with the largest scores by the first principal components of the keys.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Loki {
    /// How many tokens, beside those already taken.
    pub size: Size,
    /// Coordinates that are scored; absent: a quarter of the key's, as the authors' 32 of 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<NonZeroUsize>,
    /// Principal components of the keys, a safetensors file, relative to the pipeline file.
    #[schemars(extend("format" = "path"))]
    pub basis: PathBuf,
    /// Whose scores count.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "loki")]
impl SelectorConfig for Loki {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::built("loki", self.worker(site))
    }

    fn check(&self) -> Result<()> {
        crate::named("loki", basis::open(&self.basis).map(drop))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl Loki {
    fn worker(&self, site: &Site) -> Result<LokiSelector, String> {
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
    /// `[rank, head_dim]`.
    basis: Arc<[f32]>,
    /// The first coordinates of the keys, `[rank][tokens]`.
    index: Columns,
}

impl LokiSelector {
    /// The first coordinates of a vector `[head_dim]`.
    fn rotate(&self, vector: &[f32]) -> Vec<f32> {
        let rank = self.index.count();
        let mut out = vec![0.0; rank];
        Tokens::new(&self.basis, rank, vector.len()).dots(0..rank, vector, &mut out);
        out
    }

    /// The score of each visible token.
    fn scores(&self, row: &Row<'_>) -> Vec<f32> {
        let query = match self.score {
            Score::Head => row.query().to_vec(),
            Score::Group => row.query_of_group(),
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

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_top(self.size.to_tokens(row.visible()), &self.scores(row));
    }
}

register!(Selector, "loki", Loki, "the largest scores by the keys' first principal components");

#[cfg(test)]
mod tests;
