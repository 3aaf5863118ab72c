//! Random hash tables of signs: what the selector `magic-pig` and the sampler `lsh` share.
//!
//! A table hashes a vector to `bits` signs of its products with random Gaussians. A token whose
//! key makes the angle θ with the query agrees in one sign with probability `p = 1 − θ / π`, and in
//! all of a table's with `x = p^bits`. It is found if it agrees in at least one of the `tables` or
//! in at least two, and the probability of that over the draw of the tables is known:
//!
//! ```text
//! rule = "any"   w = 1 − (1 − x)^tables
//! rule = "two"   w = 1 − (1 − x)^tables − tables · x · (1 − x)^(tables − 1)
//! ```
//!
//! Which vectors make the angle: with `center` the mean of the keys is subtracted from a key, which
//! changes no attention but spreads the keys over the buckets; the query is left as it is, as in the
//! authors' code. With `transform = "simple-lsh"` a key becomes `[k, √(φ² − |k|²)] / φ`, φ being
//! the largest norm, and the query `[q, 0]`, so that the angle follows from `q·k` alone.
//!
//! Keys are hashed in blocks of 128 as they come. Mean and φ are those of the tokens so far when
//! a block is complete, and are kept with it: the authors hash a prompt once and for all, but
//! numbers that move on would no longer fit the signs that are stored. The tokens of the last,
//! incomplete block, or of one that a row sees in part, are found for certain, as the authors take
//! everything that was generated. They
//! add 1e-4 to `w`, which is not done here, and share one set of Gaussians among layers and heads,
//! where here every KV head of every sequence has its own; a fork keeps those of its origin.
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
use vattention_core::{Error, NewTokens, Result, Row, Site};

pub use collisions::{Collisions, Rule};
pub use lsh::{BLOCK, Lsh, TableBits, Transform};

use block::OpenBlock;

/// Random hash tables, and how they are made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashTables {
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
}

fn default_tables() -> NonZeroU16 {
    const { NonZeroU16::new(150).expect("positive") }
}

fn default_center() -> bool {
    true
}

impl HashTables {
    /// The tables of one KV head, of no tokens.
    ///
    /// # Errors
    /// [`Error::Build`](vattention_core::Error::Build) of the component, if one table is to agree with
    /// the query twice.
    pub fn index(&self, component: &str, site: &Site) -> Result<Hashed> {
        let impossible = self.rule == Rule::Two && self.tables.get() == 1;
        if impossible {
            let reason = "rule = \"two\" needs two tables or more, got tables = 1".into();
            return Err(Error::Build { component: component.into(), reason });
        }
        let (tables, dim) = (usize::from(self.tables.get()), site.shape.head_dim);
        let count = tables * usize::from(self.bits.get());
        let planes = gaussians::draw(site, count, self.transform.dim(dim));
        Ok(Hashed {
            collisions: Collisions { tables: self.tables, bits: self.bits, rule: self.rule },
            lsh: Arc::new(Lsh::new(planes, dim, self.bits, self.transform)),
            blocks: Vec::new(),
            open: OpenBlock::new(dim, self.center),
        })
    }
}

/// The keys of one KV head in its tables.
#[derive(Clone, Debug)]
pub struct Hashed {
    collisions: Collisions,
    lsh: Arc<Lsh>,
    /// Of [`BLOCK`] tokens each, shared by forks.
    blocks: Vec<Arc<block::HashBlock>>,
    /// The tokens after them.
    open: OpenBlock,
}

impl Hashed {
    /// Takes note of new tokens.
    pub fn append(&mut self, new: &NewTokens<'_>) {
        let mut key = vec![0.0; new.keys.dim()];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            self.blocks.extend(self.open.push(&key, &self.lsh).map(Arc::new));
        }
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.bytes()).sum()
    }

    /// Blocks that a row sees in whole.
    fn whole(&self, row: &Row<'_>) -> usize {
        self.blocks.len().min(row.visible() / BLOCK)
    }

    /// The tokens that a row finds, ascending; those outside of whole blocks for certain.
    pub fn found(&self, row: &Row<'_>) -> impl Iterator<Item = usize> {
        let query = self.lsh.signatures(row.query());
        let (whole, least) = (self.whole(row), self.collisions.least());
        let of_block = move |(i, block): (usize, &Arc<block::HashBlock>)| -> Vec<usize> {
            let agreeing = block.agreeing(&query);
            let found = agreeing.iter().enumerate().filter(|(_, tables)| **tables >= least);
            found.map(|(j, _)| i * BLOCK + j).collect()
        };
        let hashed = self.blocks[..whole].iter().enumerate().flat_map(of_block);
        hashed.chain(whole * BLOCK..row.visible())
    }

    /// With which probability, over the draw of the tables, a row finds each of these tokens.
    pub fn probabilities(&self, row: &Row<'_>, tokens: &[usize]) -> Vec<f64> {
        let whole = self.whole(row);
        let mut key = vec![0.0; row.query().len()];
        let of = |&token: &usize| {
            if token >= whole * BLOCK {
                return 1.0;
            }
            let block = &self.blocks[token / BLOCK];
            row.keys().copy_row(token, &mut key);
            let cosine = self.lsh.cosine(row.query(), block.centered(&mut key), block.largest);
            self.collisions.probability(cosine)
        };
        tokens.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests;
