//! `hash-attention`: the tokens whose hash code agrees with the query's in the most bits.
//!
//! Maps send queries and keys to codes of `bits` signs. A token's score is the number of bits in
//! which the code of its key agrees with that of the query: `(bits + Σ ±1 · ±1) / 2`. The selector
//! picks the `size` best tokens not yet picked. Many tokens agree in the same number of
//! bits; ties go to the lower index.
//!
//! The maps are trained (`weights`), or else random hyperplanes, the same for queries and keys. For
//! hyperplanes, the number of agreeing bits estimates the angle between query and key. With
//! `codes = "head"` each query head has its own maps, as in the authors' training, and every key
//! has one code per query head of the group. With `codes = "group"` all query heads of a KV head
//! use one pair of maps and one code per key. The maps are then those of the KV head if the file
//! has maps per KV head, else those of the group's first query head.
//!
//! # Weights
//! A safetensors file with metadata `format = "vattention-hash/1"`. For layer `l` of the model and
//! layer `i = 0, 1, …` of a map, it has in f32, f16 or bf16:
//!
//! ```text
//! layers.{l}.{query,key}.{i}.weight  [heads, in, out]   heads: query heads, or KV heads
//! layers.{l}.{query,key}.{i}.bias    [heads, out]
//! ```
//!
//! A row times the weight, plus the bias, passed through `activation`, is the next layer's input.
//! The signs of the last layer are the code. The maps take queries as the model has them before the
//! softmax scale. The metadata `scale` gives this scale if it is not `1 / √head_dim`.
//!
//! Cost: O(visible · bits / 32) words per query head. The index takes 4 bytes per token and code at
//! 32 bits. Appending a token is one pass through the key maps.
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
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens, plugin::Tunable,
    register, step::Score, typetag,
};

pub use codes::Codes;

use crate::index_scope::{IndexScope, counted_members};
use crate::network::{Activation, CodeMap};
use codes::pack;
use vattention_index::Bounded;
use weights::HashWeights;

/// Number of bits in a code; the default is the authors' 32.
pub type Bits = Bounded<1, 128, 32>;

/// Tokens whose codes agree with the query's in the most bits.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashAttention {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Trained maps: path of a safetensors file, relative to the pipeline file; absent: random
    /// hyperplanes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"))]
    pub weights: Option<PathBuf>,
    /// Number of bits in a code; absent: that of the weights, or 32 without weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<Bits>,
    /// Query heads that share maps and codes.
    #[serde(default)]
    pub codes: IndexScope,
    /// Activation between the layers of a trained map.
    #[serde(default)]
    pub activation: Activation,
    /// Scores to rank by: each query head's own, or the sum over its group.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "hash-attention")]
impl SelectorConfig for HashAttention {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        crate::box_selector("hash-attention", self.build_selector(site))
    }

    fn check(&self) -> Result<()> {
        let opened =
            self.weights.as_deref().map_or(Ok(()), |path| HashWeights::open(path).map(drop));
        crate::name_error("hash-attention", opened)
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl HashAttention {
    fn build_selector(&self, site: &Site) -> Result<HashIndex, String> {
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

    /// Returns the maps that compute the codes at `site`, one in all or one per member, and the
    /// number of bits of the codes.
    fn maps(&self, site: &Site) -> Result<(Vec<CodeMap>, Bits), String> {
        let count = if self.codes == IndexScope::Group { 1 } else { site.shape.group() };
        let Some(path) = &self.weights else {
            let bits = self.bits.unwrap_or_default();
            let dim = site.shape.head_dim;
            let map = |member| hyperplanes::draw_map(site, member, bits, dim);
            return Ok(((0..count).map(map).collect::<Result<_, _>>()?, bits));
        };
        let weights = HashWeights::open(path)?;
        let map = |member| weights.read_map(site, self.codes, member, self.activation);
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

/// Codes of all keys, computed by one map.
#[derive(Clone, Debug)]
struct KeyCodes {
    map: CodeMap,
    /// Members of the group that use the map.
    members: Range<usize>,
    codes: Codes,
}

/// Index of the hash codes of a KV head's keys.
#[derive(Clone, Debug)]
pub struct HashIndex {
    size: Size,
    score: Score,
    bits: Bits,
    keys: Vec<KeyCodes>,
}

impl HashIndex {
    /// Returns the maps that compute the codes: one for all query heads of the group, or one per
    /// query head.
    pub fn maps(&self) -> impl Iterator<Item = &CodeMap> {
        self.keys.iter().map(|keys| &keys.map)
    }

    /// Returns the score of each visible token: 1 plus the number of agreeing bits, summed over the
    /// members that count.
    fn scores(&self, row: &Row<'_>) -> Vec<u16> {
        let rows: Vec<Row<'_>> = row.members().collect();
        let members = if self.score == Score::Group { rows.len() } else { 1 };
        let most = u16::from(self.bits.get()) * members as u16;
        let mut scores = vec![1 + most; row.visible()];
        for KeyCodes { map, members, codes } in &self.keys {
            let counted = counted_members(members, self.score, row);
            let queries: Vec<_> =
                counted.map(|i| pack(&map.project_query(rows[i].query()))).collect();
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
                codes.push(pack(&map.project_key(&key)));
            }
        }
    }

    fn can_truncate(&self) -> bool {
        true
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.keys.iter_mut().for_each(|index| index.codes.truncate(keys.len()));
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn share(&mut self) {
        self.keys.iter_mut().for_each(|index| index.codes.share());
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.keys.iter().map(|keys| keys.codes.bytes()).sum()
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_top(self.size.to_tokens(row.visible()), &self.scores(row));
    }
}

register!(
    Selector,
    "hash-attention",
    HashAttention,
    "the tokens whose hash codes agree with the query's in the most bits"
);

#[cfg(test)]
mod tests;
