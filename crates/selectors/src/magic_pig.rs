//! `magic-pig`: the tokens that fall into the query's bucket in enough of many random hash tables.
//!
//! A table hashes a vector to `bits` signs of its products with random Gaussians. A token whose
//! key makes the angle θ with the query agrees in one sign with probability `p = 1 − θ / π`, and in
//! all of a table's with `x = p^bits`. It is picked if it agrees in at least one of the `tables` or
//! in at least two, and the probability of that over the draw of the tables is known:
//!
//! ```text
//! rule = "any"   w = 1 − (1 − x)^tables
//! rule = "two"   w = 1 − (1 − x)^tables − tables · x · (1 − x)^(tables − 1)
//! ```
//!
//! With `weighting = "inclusion"` a pick weighs `1 / w`, which makes every sum of the softmax
//! unbiased over draws of the tables; with `"certain"` it weighs 1, and a sample of the rest may
//! follow. Probabilities below 1e-9 count as 1e-9.
//!
//! Which vectors make the angle: with `center` the mean of the keys is subtracted from a key, which
//! changes no attention but spreads the keys over the buckets; the query is left as it is, as in the
//! authors' code. With `transform = "simple-lsh"` a key becomes `[k, √(φ² − |k|²)] / φ`, φ being
//! the largest norm, and the query `[q, 0]`, so that the angle follows from `q·k` alone.
//!
//! Keys are hashed in blocks of 128 as they come. Mean and φ are those of the tokens so far when
//! a block is complete, and are kept with it: the authors hash a prompt once and for all, but
//! numbers that move on would no longer fit the signs that are stored. The tokens of the last,
//! incomplete block, or of one that a row sees in part, are taken for certain, as the authors take
//! everything that was generated. They
//! add 1e-4 to `w`, which is not done here, and share one set of Gaussians among layers and heads,
//! where here every KV head of every sequence has its own; a fork keeps those of its origin.
//!
//! Cost: a scan of `2 · tables` bytes per token and query head, and one product for each token that
//! is picked (authors: 10 bits and 150 tables, 300 bytes of index per token); appending a token is
//! `bits · tables` products.
//!
//! # Guarantee
//! None by itself. Sums weighted by inclusion are unbiased, but over the draw of the tables, which
//! is one for a whole sequence: errors do not average out over its steps, and inclusions of
//! different tokens depend on each other. With `weighting = "certain"` an estimator may
//! follow, whose promise is as good as its sample sees what the tables miss: after the authors'
//! tables `verify` contradicts `ratio` at 0.1 and 0.1 on the repository's trace, so its pipeline
//! takes `fixed`.
//!
//! Chen, Sadhukhan, Ye, Zhou, Zhang, Nolte, Tian, Douze, Bottou, Jia, Chen (2024), "MagicPIG: LSH
//! Sampling for Efficient LLM Generation", <https://arxiv.org/abs/2410.16179>; simple LSH: Neyshabur,
//! Srebro (2015), "On Symmetric and Asymmetric LSHs for Inner Product Search",
//! <https://arxiv.org/abs/1410.5518>.

mod block;
mod collisions;
mod gaussians;
mod lsh;

use std::num::NonZeroU16;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Error, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, register, typetag,
};

pub use collisions::{Collisions, Rule};
pub use lsh::{BLOCK, Lsh, TableBits, Transform};

use block::Open;

/// The tokens in the query's bucket in enough of many random hash tables.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MagicPig {
    /// Hash tables.
    #[serde(default = "default_tables")]
    pub tables: NonZeroU16,
    /// Signs that a table hashes to.
    #[serde(default)]
    pub bits: TableBits,
    /// In how many tables a token must agree with the query.
    #[serde(default)]
    pub rule: Rule,
    /// Which vectors are hashed.
    #[serde(default)]
    pub transform: Transform,
    /// Whether the mean of the keys is subtracted from them before.
    #[serde(default = "default_center")]
    pub center: bool,
    /// What a pick weighs.
    #[serde(default)]
    pub weighting: Weighting,
}

fn default_tables() -> NonZeroU16 {
    NonZeroU16::MIN.saturating_add(149)
}

fn default_center() -> bool {
    true
}

/// What a pick weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Weighting {
    /// 1 over the probability that it is picked: the selector must be the last, without estimator.
    #[default]
    Inclusion,
    /// 1, as what other selectors pick.
    Certain,
}

#[typetag::serde(name = "magic-pig")]
impl SelectorConfig for MagicPig {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        if self.rule == Rule::Two && self.tables.get() == 1 {
            return Err(Error::Build {
                component: "magic-pig".into(),
                reason: "rule = \"two\" needs two tables or more, got tables = 1".into(),
            });
        }
        Ok(Box::new(self.worker(site)))
    }

    fn randomized(&self) -> bool {
        self.weighting == Weighting::Inclusion
    }
}

impl MagicPig {
    fn worker(&self, site: &Site) -> Worker {
        let (tables, dim) = (usize::from(self.tables.get()), site.shape.head_dim);
        let count = tables * usize::from(self.bits.get());
        let planes = gaussians::draw(site, count, self.transform.dim(dim));
        Worker {
            collisions: Collisions { tables: self.tables, bits: self.bits, rule: self.rule },
            weighting: self.weighting,
            lsh: Arc::new(Lsh::new(planes, dim, self.bits, self.transform)),
            blocks: Vec::new(),
            open: Open::new(dim, self.center),
        }
    }
}

#[derive(Clone)]
struct Worker {
    collisions: Collisions,
    weighting: Weighting,
    lsh: Arc<Lsh>,
    /// Of [`BLOCK`] tokens each, shared by forks.
    blocks: Vec<Arc<block::Block>>,
    /// The tokens after them.
    open: Open,
}

impl Selector for Worker {
    fn append(&mut self, new: &NewTokens<'_>) {
        let mut key = vec![0.0; new.keys.dim()];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            self.blocks.extend(self.open.push(&key, &self.lsh).map(Arc::new));
        }
    }

    fn index_bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.bytes()).sum()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let query = self.lsh.signatures(row.query());
        let mut key = vec![0.0; row.query().len()];
        let whole = self.blocks.len().min(row.visible() / BLOCK);
        for (i, block) in self.blocks[..whole].iter().enumerate() {
            let agreeing = block.agreeing(&query);
            for (j, _) in
                agreeing.iter().enumerate().filter(|(_, n)| **n >= self.collisions.least())
            {
                let token = i * BLOCK + j;
                if picks.contains(token) {
                    continue;
                }
                if self.weighting == Weighting::Certain {
                    picks.take(token);
                    continue;
                }
                row.keys().copy_row(token, &mut key);
                let cosine = self.lsh.cosine(row.query(), block.centered(&mut key), block.largest);
                picks.draw(token, self.collisions.probability(cosine) as f32);
            }
        }
        picks.take_range(whole * BLOCK..row.visible());
    }
}

register!(
    Selector,
    "magic-pig",
    MagicPig,
    "the tokens in the query's bucket in enough of many random hash tables"
);

#[cfg(test)]
mod tests;
