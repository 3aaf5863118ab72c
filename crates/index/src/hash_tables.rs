//! Random hash tables of signs, for the selector `magic-pig` and the sampler `lsh`.
//!
//! A table hashes a vector to `bits` signs of its products with random Gaussian vectors. A token
//! whose key makes the angle θ with the query agrees with it in one sign with probability
//! `p = 1 − θ / π`, and in all signs of a table with probability `x = p^bits`. The token is found
//! if it agrees in at least one of the `tables`, or in at least two. Over the draw of the tables,
//! the probability of finding it is
//!
//! ```text
//! rule = "any"   w = 1 − (1 − x)^tables
//! rule = "two"   w = 1 − (1 − x)^tables − tables · x · (1 − x)^(tables − 1)
//! ```
//!
//! With `center` the mean of the keys is subtracted from each key before hashing, which does not
//! change the attention but spreads the keys over the buckets; the query is not changed, as in the
//! authors' code. With `transform = "simple-lsh"` a key becomes `[k, √(φ² − |k|²)] / φ`, where φ is
//! the largest norm, and the query becomes `[q, 0]`, so that the angle depends on `q·k` only.
//!
//! Keys are hashed in blocks of 128 as they are appended. When a block is complete, the mean and φ
//! of all tokens so far are computed and stored with the block: later values would not match the
//! stored signs. (The authors hash a prompt once.) The tokens of the last, incomplete block, and of
//! a block that is only partly visible to a row, are always found; the authors, too, read all
//! generated tokens. The authors' code differs in two ways: it adds 1e-4 to `w`, and it shares one
//! set of Gaussian vectors among layers and heads. Here every KV head of every sequence has its own
//! vectors, and a fork has those of its origin.
//!
//! Chen, Sadhukhan, Ye, Zhou, Zhang, Nolte, Tian, Douze, Bottou, Jia, Chen (2024), "MagicPIG: LSH
//! Sampling for Efficient LLM Generation", <https://arxiv.org/abs/2410.16179>; simple LSH:
//! Neyshabur, Srebro (2015), "On Symmetric and Asymmetric LSHs for Inner Product Search",
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

/// Settings of random hash tables.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashTables {
    /// Number of hash tables.
    #[serde(default = "default_tables")]
    pub tables: NonZeroU16,
    /// Number of signs in the hash of a table.
    #[serde(default)]
    pub bits: TableBits,
    /// Number of tables in which a token must agree with the query.
    #[serde(default)]
    pub rule: Rule,
    /// Transform of query and keys before hashing.
    #[serde(default)]
    pub transform: Transform,
    /// True to subtract the mean of the keys from each key before hashing.
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
    /// Creates the tables of one KV head, without tokens.
    ///
    /// # Errors
    /// [`Error::Build`](vattention_core::Error::Build) of the component, if the rule requires two
    /// tables and there is one.
    pub fn index(&self, component: &str, site: &Site) -> Result<HashTableIndex> {
        let impossible = self.rule == Rule::Two && self.tables.get() == 1;
        if impossible {
            let reason = "rule = \"two\" needs two tables or more, got tables = 1".into();
            return Err(Error::Build { component: component.into(), reason });
        }
        let (tables, dim) = (usize::from(self.tables.get()), site.shape.head_dim);
        let count = tables * usize::from(self.bits.get());
        let planes = gaussians::draw(site, count, self.transform.dim(dim));
        Ok(HashTableIndex {
            collisions: Collisions { tables: self.tables, bits: self.bits, rule: self.rule },
            lsh: Arc::new(Lsh::new(planes, dim, self.bits, self.transform)),
            blocks: Vec::new(),
            open: OpenBlock::new(dim, self.center),
        })
    }
}

/// Index of the keys of one KV head by hash tables.
#[derive(Clone, Debug)]
pub struct HashTableIndex {
    collisions: Collisions,
    lsh: Arc<Lsh>,
    /// Complete blocks of [`BLOCK`] tokens, shared by forks.
    blocks: Vec<Arc<block::HashBlock>>,
    /// Tokens after the complete blocks.
    open: OpenBlock,
}

impl HashTableIndex {
    /// Adds new tokens.
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

    /// Number of complete blocks all of whose tokens are visible to a row.
    fn visible_blocks(&self, row: &Row<'_>) -> usize {
        self.blocks.len().min(row.visible() / BLOCK)
    }

    /// Tokens that the tables find for a row, ascending. Tokens after the last complete block that
    /// is wholly visible are always found.
    pub fn found(&self, row: &Row<'_>) -> impl Iterator<Item = usize> {
        let query = self.lsh.signatures(row.query());
        let (blocks, least) = (self.visible_blocks(row), self.collisions.least());
        let find = move |(i, block): (usize, &Arc<block::HashBlock>)| -> Vec<usize> {
            let counts = block.count_agreeing_tables(&query);
            let found = counts.iter().enumerate().filter(|(_, count)| **count >= least);
            found.map(|(j, _)| i * BLOCK + j).collect()
        };
        let hashed = self.blocks[..blocks].iter().enumerate().flat_map(find);
        hashed.chain(blocks * BLOCK..row.visible())
    }

    /// Sums, over the tables, of the [probability](Lsh::bucket_probabilities) that a row's query
    /// falls into the bucket of each token in the complete blocks that are wholly visible.
    pub fn soft_collisions(&self, row: &Row<'_>, soften: impl Fn(f32) -> f32) -> Vec<f32> {
        let weights = self.lsh.bucket_probabilities(row.query(), soften);
        let blocks = &self.blocks[..self.visible_blocks(row)];
        blocks.iter().flat_map(|block| block.sum_weights(&weights)).collect()
    }

    /// Probability, over the draw of the tables, that a row finds each of these tokens.
    pub fn probabilities(&self, row: &Row<'_>, tokens: &[usize]) -> Vec<f64> {
        let blocks = self.visible_blocks(row);
        let mut key = vec![0.0; row.query().len()];
        let probability = |&token: &usize| {
            if token >= blocks * BLOCK {
                return 1.0;
            }
            let block = &self.blocks[token / BLOCK];
            row.keys().copy_row(token, &mut key);
            let cosine = self.lsh.cosine(row.query(), block.center(&mut key), block.largest);
            self.collisions.probability(cosine)
        };
        tokens.iter().map(probability).collect()
    }
}

#[cfg(test)]
mod tests;
