//! `pq-cache`: the tokens with the largest scores by product-quantised keys.
//!
//! A key is cut into `parts` equal parts. Each part is replaced by the nearest of `2^bits`
//! centroids, whose number is the part's code. The products of a query's parts with all centroids
//! are computed once and stored in tables; a token's score is the sum of the table entries of its
//! codes, which equals `q · decoded key`. The selector picks the `size` best tokens not yet picked;
//! ties go to the lower index.
//!
//! With `score = "group"`, as in the authors' method, a softmax over the tokens not yet picked
//! turns the scores above into shares of each query head's attention, and a token's score is the
//! sum of its shares over the query heads. Every head then has the same weight, while a sum of
//! logits would be dominated by the query of largest norm.
//!
//! # Centroids
//! The centroids are computed by k-means from the keys of the sequence: the first `skip` tokens are
//! left out, the next `fit` tokens are clustered as soon as they are appended, and the centroids
//! never change after that. A row that sees fewer than `skip + fit` tokens is scored by the keys
//! themselves, so that a row's picks depend only on the keys that it sees, however they were
//! appended. The authors cluster the whole prompt; a selector does not know where a prompt ends,
//! but `fit` can be set to its length. On a trace of 7168 tokens, the best 5 % of the tokens hold
//! 0.51 of the attention if centroids of 1024 tokens rank them, 0.53 with centroids of all tokens,
//! and 0.63 with exact scores.
//!
//! With `metric = "inner-product"`, each part `x` is extended by one more number, `√(φ − |x|²)`,
//! which raises its norm to the largest norm `√φ` of the clustered parts. A query is extended by 0.
//! The nearest of the extended parts is then the part of largest product with the query. Later
//! parts of a larger norm are extended by 0, too.
//!
//! Cost: O(2^bits · head_dim + visible · parts) per query head. The index takes one byte per token
//! and part, even for codes of fewer than 8 bits, because a byte indexes a table faster. Appending
//! a token is O(2^bits · head_dim). Computing the centroids once is O(iterations · fit · 2^bits ·
//! head_dim); until then the index stores the keys so far, in f32.
//!
//! # Guarantee
//! The selector alone guarantees nothing: scores err by the product of the query with the
//! quantisation error of the key. An estimator after the selector gives a guarantee for the tokens
//! left over.
//!
//! Zhang, Ji, Chen, Fu, Miao, Nie, Chen, Cui (2024), "PQCache: Product Quantization-based KVCache
//! for Long Context LLM Inference", <https://arxiv.org/abs/2407.12820>; the codes: Jégou, Douze,
//! Schmid (2011), "Product Quantization for Nearest Neighbor Search",
//! <https://doi.org/10.1109/TPAMI.2010.57>.

mod codebook;
mod codes;
mod shares;

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::ndarray::{Array2, ArrayView2, s};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, plugin::Tunable, register,
    step::Score, typetag,
};

pub use codebook::{Codebook, PartTable};
pub use codes::PartCodes;

use codebook::{augment, squared_norm};
use vattention_index::Bounded;
use vattention_index::clusters::{k_means, order};

/// Number of bits in the code of one part, which has `2^bits` centroids; the default is the
/// authors' 6.
pub type PartBits = Bounded<1, 8, 6>;

/// Tokens with the largest scores by product-quantised keys.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PqCache {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of equal parts that a key is cut into, each with its own code.
    #[serde(default = "default_parts")]
    pub parts: NonZeroU16,
    /// Number of bits in a part's code: `2^bits` centroids.
    #[serde(default)]
    pub bits: PartBits,
    /// Number of tokens whose keys are clustered, once, as soon as they are appended. The length of
    /// the prompt gives the authors' method.
    #[serde(default = "default_fit")]
    pub fit: NonZeroU32,
    /// Number of first tokens that are not clustered, because their keys are unlike others.
    #[serde(default = "default_skip")]
    pub skip: u32,
    /// Largest number of k-means iterations.
    #[serde(default = "default_iterations")]
    pub iterations: u16,
    /// Distance that decides which centroid is nearest.
    #[serde(default)]
    pub metric: Metric,
    /// Scores to rank by: each query head's own, or the sum over its group of the heads' shares of
    /// attention.
    #[serde(default)]
    pub score: Score,
}

fn default_parts() -> NonZeroU16 {
    const { NonZeroU16::new(2).unwrap() }
}

fn default_fit() -> NonZeroU32 {
    const { NonZeroU32::new(1024).unwrap() }
}

fn default_skip() -> u32 {
    32
}

fn default_iterations() -> u16 {
    10
}

/// Distance that decides which centroid is nearest to a part of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Euclidean distance.
    #[default]
    Euclidean,
    /// Euclidean distance after all parts are extended to one norm.
    InnerProduct,
}

#[typetag::serde(name = "pq-cache")]
impl SelectorConfig for PqCache {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::box_selector("pq-cache", self.build_selector(site))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl PqCache {
    fn build_selector(&self, site: &Site) -> Result<PqCacheSelector, String> {
        let (parts, dim) = (usize::from(self.parts.get()), site.shape.head_dim);
        if !dim.is_multiple_of(parts) {
            return Err(format!(
                "keys of {dim} elements cannot be cut into `parts` = {parts}: \
                 expected a divisor of {dim}"
            ));
        }
        Ok(PqCacheSelector { config: self.clone(), site: *site, index: PqIndex::Keys(Vec::new()) })
    }

    /// Smallest number of tokens with which there are centroids.
    fn min_tokens(&self) -> usize {
        self.skip as usize + self.fit.get() as usize
    }
}

/// Applies [`augment`] to each point.
fn augment_all(points: ArrayView2<'_, f32>, phi: f64) -> Array2<f32> {
    let rows = points.rows().into_iter().flat_map(|point| augment(&point.to_vec(), phi));
    Array2::from_shape_vec((points.nrows(), points.ncols() + 1), rows.collect())
        .expect("each point has one more number")
}

/// Index of all keys so far.
#[derive(Clone)]
enum PqIndex {
    /// Keys, while there are too few to cluster.
    Keys(Vec<f32>),
    /// Codes of the keys.
    Codes(Arc<[Codebook]>, PartCodes),
}

#[derive(Clone)]
struct PqCacheSelector {
    config: PqCache,
    site: Site,
    index: PqIndex,
}

impl PqCacheSelector {
    /// Replaces the keys by codes if there are enough of them.
    fn fit(&mut self) {
        let PqIndex::Keys(keys) = &self.index else { return };
        let (needed, dim) = (self.config.min_tokens(), self.site.shape.head_dim);
        if keys.len() < needed * dim {
            return;
        }
        let all = ArrayView2::from_shape((needed, dim), keys).expect("the keys are `needed` rows");
        let clustered = all.slice(s![self.config.skip as usize.., ..]);
        let codebooks = self.codebooks(clustered);
        let mut codes = PartCodes::new(codebooks.len());
        keys.chunks_exact(dim).for_each(|key| codes.push(encode(&codebooks, key)));
        self.index = PqIndex::Codes(codebooks, codes);
    }

    /// Computes a codebook for each part of `keys` `[tokens, head_dim]`.
    ///
    /// The codebooks depend only on the keys, the seed, the layer and the head, so that all
    /// sequences with these keys share them.
    fn codebooks(&self, keys: ArrayView2<'_, f32>) -> Arc<[Codebook]> {
        let PqCache { parts, bits, iterations, metric, .. } = self.config;
        let parts = usize::from(parts.get());
        let dim = keys.ncols() / parts;
        let codebook = |part: usize| {
            let points = keys.slice(s![.., part * dim..(part + 1) * dim]);
            let order = order(points.nrows(), &self.site, part);
            let cluster = |points| k_means(points, 1 << bits.get(), iterations, order);
            match metric {
                Metric::Euclidean => Codebook::new(cluster(points).view(), None),
                Metric::InnerProduct => {
                    let phi = points.rows().into_iter().map(squared_norm).fold(0.0, f64::max);
                    Codebook::new(cluster(augment_all(points, phi).view()).view(), Some(phi))
                }
            }
        };
        (0..parts).map(codebook).collect()
    }

    /// Computes the logits of the visible tokens for the row's own query, as the codes predict
    /// them.
    fn logits(&self, row: &Row<'_>) -> Vec<f32> {
        match &self.index {
            PqIndex::Codes(codebooks, codes) if row.visible() >= self.config.min_tokens() => {
                let mut scores = vec![0.0; row.visible()];
                codes.add_scores(&tables(codebooks, row.query()), &mut scores);
                row.form().cap(&mut scores);
                scores
            }
            _ => row.scores(Score::Head).into_owned(),
        }
    }

    /// Computes the shares of the group's attention over the tokens that are not picked.
    fn shares(&self, row: &Row<'_>, picks: &Picks) -> Vec<f32> {
        let mut shares = vec![0.0; row.visible()];
        for member in row.members() {
            let mut logits = self.logits(&member);
            picks.iter().for_each(|token| logits[token] = f32::NEG_INFINITY);
            shares::add_shares(logits, &mut shares);
        }
        shares
    }
}

/// Computes the codes of a key's parts.
fn encode<'a>(codebooks: &'a [Codebook], key: &'a [f32]) -> impl Iterator<Item = u8> {
    let parts = key.chunks_exact(key.len() / codebooks.len());
    codebooks.iter().zip(parts).map(|(codebook, part)| codebook.encode(part))
}

/// Computes the tables of a query's parts.
fn tables(codebooks: &[Codebook], query: &[f32]) -> Vec<PartTable> {
    let parts = query.chunks_exact(query.len() / codebooks.len());
    codebooks.iter().zip(parts).map(|(codebook, part)| codebook.table(part)).collect()
}

impl Selector for PqCacheSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let mut key = vec![0.0; new.keys.dim()];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            match &mut self.index {
                PqIndex::Keys(keys) => {
                    keys.extend(&key);
                    self.fit();
                }
                PqIndex::Codes(codebooks, codes) => codes.push(encode(codebooks, &key)),
            }
        }
    }

    fn group_wide(&self) -> bool {
        self.config.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        match &self.index {
            PqIndex::Keys(keys) => size_of_val(&keys[..]),
            PqIndex::Codes(_, codes) => codes.bytes(),
        }
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("learns centroids from the keys of its own sequence")
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        self.config.tunable()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let scores = match self.config.score {
            Score::Head => self.logits(row),
            Score::Group => self.shares(row, picks),
        };
        picks.take_top(self.config.size.to_tokens(row.visible()), &scores);
    }
}

register!(
    Selector,
    "pq-cache",
    PqCache,
    "the tokens with the largest scores by keys quantised with centroids of the same sequence"
);

#[cfg(test)]
mod tests;
