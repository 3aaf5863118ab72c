//! `hash-attention`: the tokens whose hash code agrees with the query's in the most bits.
//!
//! Maps send queries and keys to codes of `bits` signs, and a token scores the number of signs in
//! which its key's code agrees with the query's: `(bits + Σ ±1 · ±1) / 2`. Takes the `size` best
//! among the tokens not yet taken; many agree in as many bits, and of these the lower index comes
//! first.
//!
//! The maps are trained (`weights`), or else random hyperplanes, the same for queries and keys, for
//! which agreeing is an estimate of the angle between them. With `codes = "head"` each query
//! head has maps of its own, as the authors train them, and every key has a code for each query
//! head of the group. With `codes = "group"` all query heads of a KV head use one pair of maps
//! and one code per key: those of the KV head where the file has as many, else those of the
//! group's first query head.
//!
//! # Weights
//! A safetensors file with metadata `format = "vattention-hash/1"` and, for layer `l` of the model
//! and layer `i = 0, 1, …` of a map, in f32, f16 or bf16,
//!
//! ```text
//! layers.{l}.{query,key}.{i}.weight  [heads, in, out]   heads: query heads, or KV heads
//! layers.{l}.{query,key}.{i}.bias    [heads, out]
//! ```
//!
//! A row times the weight, plus the bias, is the next layer's input, after `activation`; the signs
//! of the last layer are the code. Queries are those of the model before the softmax scale, which
//! the metadata `scale` says if it is not `1 / √head_dim`.
//!
//! Cost: O(visible · bits / 32) words per query head, 4 bytes of index per token and code at 32
//! bits; appending a token is one pass through the key maps.
//!
//! Desai, Yang, Cuadron, Zaharia, Gonzalez, Stoica (2024), "HashAttention: Semantic Sparsity for
//! Faster Inference", <https://arxiv.org/abs/2412.14468>; random hyperplanes: Charikar (2002),
//! "Similarity Estimation Techniques from Rounding Algorithms".

mod codes;
mod hyperplanes;
mod weights;

use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, plugin::Tunable, register,
    step::Score, typetag,
};

pub use codes::Codes;

use crate::index_of::{IndexOf, counting};
use crate::network::{Activation, CodeMap};
use codes::pack;
use vattention_index::Bounded;
use weights::HashWeights;

/// The signs in a code, 32 as the authors have.
pub type Bits = Bounded<1, 128, 32>;

/// The tokens whose codes agree with the query's in the most bits.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashAttention {
    /// Tokens to take, beside those already taken.
    pub size: Size,
    /// Trained maps, a safetensors file, relative to the pipeline file; absent: random
    /// hyperplanes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"))]
    pub weights: Option<PathBuf>,
    /// Signs in a code; absent: as many as the weights have, or 32 without weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<Bits>,
    /// Whose maps make the codes.
    #[serde(default)]
    pub codes: IndexOf,
    /// What is between the layers of a trained map.
    #[serde(default)]
    pub activation: Activation,
    /// Whose scores count.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "hash-attention")]
impl SelectorConfig for HashAttention {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::built("hash-attention", self.worker(site))
    }

    fn check(&self) -> Result<()> {
        let opened =
            self.weights.as_deref().map_or(Ok(()), |path| HashWeights::open(path).map(drop));
        crate::named("hash-attention", opened)
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl HashAttention {
    fn worker(&self, site: &Site) -> Result<HashIndex, String> {
        let (maps, bits) = self.maps(site)?;
        let group = site.shape.group();
        let index = |(i, map)| KeyCodes {
            map,
            members: self.codes.members(i, group),
            codes: Codes::new(bits),
        };
        let keys = maps.into_iter().enumerate().map(index).collect();
        Ok(HashIndex { size: self.size, score: self.score, bits, keys })
    }

    /// The maps that make codes at `site`, one or one for each member, and the bits of the codes.
    fn maps(&self, site: &Site) -> Result<(Vec<CodeMap>, Bits), String> {
        let count = if self.codes == IndexOf::Group { 1 } else { site.shape.group() };
        let Some(path) = &self.weights else {
            let bits = self.bits.unwrap_or_default();
            let dim = site.shape.head_dim;
            let map = |member| hyperplanes::map(site, member, bits, dim);
            return Ok(((0..count).map(map).collect::<Result<_, _>>()?, bits));
        };
        let weights = HashWeights::open(path)?;
        let map = |member| weights.map(site, self.codes, member, self.activation);
        let maps = (0..count).map(map).collect::<Result<Vec<_>, _>>()?;
        let bits = maps[0].bits();
        match self.bits {
            Some(expected) if usize::from(expected.get()) != bits => Err(format!(
                "{}: the codes have {bits} bits: expected {}, as `bits` says",
                path.display(),
                expected.get(),
            )),
            _ => Ok((maps, Bits::try_from(bits as u64)?)),
        }
    }
}

/// Codes of all keys by one map.
#[derive(Clone, Debug)]
struct KeyCodes {
    map: CodeMap,
    /// The members of the group that use it.
    members: Range<usize>,
    codes: Codes,
}

/// The hash codes of a KV head's keys.
#[derive(Clone, Debug)]
pub struct HashIndex {
    size: Size,
    score: Score,
    bits: Bits,
    keys: Vec<KeyCodes>,
}

impl HashIndex {
    /// The maps that make the codes: one for all query heads of the group, or one for each.
    pub fn maps(&self) -> impl Iterator<Item = &CodeMap> {
        self.keys.iter().map(|keys| &keys.map)
    }

    /// 1 and the agreeing bits of each visible token, summed over the members that count.
    fn scores(&self, row: &Row<'_>) -> Vec<u16> {
        let rows: Vec<Row<'_>> = row.members().collect();
        let asked = if self.score == Score::Group { rows.len() } else { 1 };
        let most = u16::from(self.bits.get()) * asked as u16;
        let mut scores = vec![1 + most; row.visible()];
        for KeyCodes { map, members, codes } in &self.keys {
            let counting = counting(members, self.score, row);
            let queries: Vec<_> = counting.map(|i| pack(&map.of_query(rows[i].query()))).collect();
            codes.subtract_differing(&queries, &mut scores);
        }
        scores
    }
}

impl Selector for HashIndex {
    fn append(&mut self, new: &NewTokens<'_>) {
        let mut key = vec![0.0; new.keys.dim()];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            for KeyCodes { map, codes, .. } in &mut self.keys {
                codes.push(pack(&map.of_key(&key)));
            }
        }
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.keys.iter().map(|keys| keys.codes.bytes()).sum()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_top(self.size.to_tokens(row.visible()), &self.scores(row));
    }
}

register!(
    Selector,
    "hash-attention",
    HashAttention,
    "the hash codes that agree with the query's in the most bits"
);

#[cfg(test)]
mod tests;
