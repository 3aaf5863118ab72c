//! `pq-cache`: the tokens with the largest scores by product-quantised keys.
//!
//! A key is cut into `parts` equal parts, and each part is replaced by the nearest of `2^bits`
//! centroids, whose number is its code. A query multiplies its own parts with all centroids once;
//! a token then scores the sum of what the tables say of its codes, which is `q · decoded key`.
//! Takes the `size` best among the tokens not yet taken, lower index first among equals.
//!
//! With `score = "group"` a token scores its share of each query head's attention over the tokens
//! not yet taken, softmax of these scores, summed over the query heads, as the authors have it:
//! every head counts as much as another, where a sum of logits would follow the longest query.
//!
//! # Centroids
//! They come from the keys of the sequence itself, by k-means: the first `skip` tokens are left
//! out, the next `fit` are clustered as soon as they are there, and the centroids never change
//! after that. A row that sees fewer tokens than `skip + fit` is scored by the keys themselves.
//! So a row's picks follow from the keys that it sees, however they came. The authors cluster the
//! whole prompt; a selector does not know where one ends, but `fit` can say it. Of a trace of 7168
//! tokens the best twentieth by the centroids of 1024 holds 0.51 of the attention, by those of all
//! 0.53, and by exact scores 0.63.
//!
//! With `metric = "inner-product"` one more number `√(φ − |x|²)` fills each part up to the largest
//! norm `√φ` of the clustered ones. A query has 0 there, so that its distances to such points rank
//! as its products with them do. Later parts that are longer than that have 0 too.
//!
//! Cost: O(2^bits · head_dim + visible · parts) per query head; a byte of index per token and part,
//! codes of fewer than 8 bits included: a table is faster to enter by a byte. Appending a token is
//! O(2^bits · head_dim), and once there are O(iterations · fit · 2^bits · head_dim) for the
//! centroids; until then the index is the keys so far, in f32.
//!
//! # Guarantee
//! None by itself: scores err by the product of the query with what the codes lost. An estimator
//! after it promises for what it leaves.
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

use codebook::{augmented, squared_norm};
use vattention_index::Bounded;
use vattention_index::clusters::{k_means, order};

/// The bits of one part's code, 6 as the authors have: there are `2^bits` centroids.
pub type PartBits = Bounded<1, 8, 6>;

/// The tokens with the largest scores by product-quantised keys.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PqCache {
    /// How many tokens, beside those already taken.
    pub size: Size,
    /// Equal parts that a key is cut into, each with a code of its own.
    #[serde(default = "two")]
    pub parts: NonZeroU16,
    /// Bits of a part's code: `2^bits` centroids.
    #[serde(default)]
    pub bits: PartBits,
    /// How many tokens' keys are clustered, once, as soon as they are there; the length of the
    /// prompt for what the authors do.
    #[serde(default = "default_fit")]
    pub fit: NonZeroU32,
    /// The first tokens, whose keys are unlike others, and are not clustered.
    #[serde(default = "default_skip")]
    pub skip: u32,
    /// The most times that the centroids are moved.
    #[serde(default = "ten")]
    pub iterations: u16,
    /// Which centroid is nearest.
    #[serde(default)]
    pub metric: Metric,
    /// Whose scores count; those of a group are shares of its heads' attention.
    #[serde(default)]
    pub score: Score,
}

fn two() -> NonZeroU16 {
    const { NonZeroU16::new(2).unwrap() }
}

fn default_fit() -> NonZeroU32 {
    const { NonZeroU32::new(1024).unwrap() }
}

fn default_skip() -> u32 {
    32
}

fn ten() -> u16 {
    10
}

/// Which centroid is the nearest to a part of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The one at the smallest distance.
    #[default]
    Euclidean,
    /// The one at the smallest distance after all parts are filled up to one norm.
    InnerProduct,
}

#[typetag::serde(name = "pq-cache")]
impl SelectorConfig for PqCache {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::built("pq-cache", self.worker(site))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl PqCache {
    fn worker(&self, site: &Site) -> Result<PqCacheSelector, String> {
        let (parts, dim) = (usize::from(self.parts.get()), site.shape.head_dim);
        if !dim.is_multiple_of(parts) {
            return Err(format!(
                "keys of {dim} elements cannot be cut into `parts` = {parts}: expected a divisor of {dim}"
            ));
        }
        Ok(PqCacheSelector { config: self.clone(), site: *site, index: PqIndex::Keys(Vec::new()) })
    }

    /// How many tokens there must be for the centroids.
    fn fitted_from(&self) -> usize {
        self.skip as usize + self.fit.get() as usize
    }
}

/// [`augmented`] of each point.
fn filled(points: ArrayView2<'_, f32>, phi: f64) -> Array2<f32> {
    let rows = points.rows().into_iter().flat_map(|point| augmented(&point.to_vec(), phi));
    Array2::from_shape_vec((points.nrows(), points.ncols() + 1), rows.collect())
        .expect("each point has one more number")
}

/// What is known of all keys so far.
#[derive(Clone)]
enum PqIndex {
    /// The keys themselves, while there are too few to be clustered.
    Keys(Vec<f32>),
    /// Their codes.
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
        let (needed, dim) = (self.config.fitted_from(), self.site.shape.head_dim);
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

    /// A codebook for each part of `keys` `[tokens, head_dim]`.
    ///
    /// They follow from the keys, the seed and the place alone: every sequence has the same.
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
                    Codebook::new(cluster(filled(points, phi).view()).view(), Some(phi))
                }
            }
        };
        (0..parts).map(codebook).collect()
    }

    /// The scores of the visible tokens for the row's own query.
    fn logits(&self, row: &Row<'_>) -> Vec<f32> {
        match &self.index {
            PqIndex::Codes(codebooks, codes) if row.visible() >= self.config.fitted_from() => {
                let mut scores = vec![0.0; row.visible()];
                codes.add_scores(&tables(codebooks, row.query()), &mut scores);
                scores
            }
            _ => row.scores(Score::Head).into_owned(),
        }
    }

    /// The shares of the group's attention to what is not taken.
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

/// The codes of a key's parts.
fn encode<'a>(codebooks: &'a [Codebook], key: &'a [f32]) -> impl Iterator<Item = u8> {
    let parts = key.chunks_exact(key.len() / codebooks.len());
    codebooks.iter().zip(parts).map(|(codebook, part)| codebook.encode(part))
}

/// What the parts of a query make of the centroids.
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
    "the largest scores by keys quantised with centroids of the sequence's own"
);

#[cfg(test)]
mod tests;
