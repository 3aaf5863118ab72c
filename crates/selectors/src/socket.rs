//! `socket`: the tokens with the largest soft collisions with the query in random hash tables.
//!
//! A key falls into one bucket of each table, by the signs of its products with `bits` random
//! Gaussian vectors ([`HashTables`], without centring and transform). The query falls into each
//! bucket with a probability that is larger if more of these signs agree. With `s_lj` for sign `j`
//! of the key in table `l`, and `w_lj` for the vector:
//!
//! ```text
//! score = |v| Σ_l p_l(bucket of k)    p_l(bucket) = Π_j 1 / (1 + exp(−2 s_lj h_lj))
//! h_lj  = tanh(√head_dim q·w_lj) / (temperature √head_dim)
//! ```
//!
//! `p_l` is the softmax over all buckets of `Σ_j s_lj h_lj`, which is a product over signs. `q` is
//! the scaled query, so that `√head_dim q` is the unscaled one with the default scale. The selector
//! picks the `size` best tokens not yet picked; ties go to the lower index. Keys are hashed in
//! blocks of 128 tokens, and tokens after the last block that is wholly visible are picked in
//! addition.
//!
//! Cost: a scan of `2 · tables` bytes per token and query head, and `tables · 2^bits` probabilities
//! per query. The index takes `2 · tables + 4` bytes per token. Appending a token computes
//! `bits · tables` products.
//!
//! # Guarantee
//! The selector alone guarantees nothing. A score estimates a function that falls with the angle
//! between query and key, times the norm of the value, and not the attention weight: it ignores the
//! length of the key. An estimator after the selector depends on its sample to reveal heavy tokens
//! that the selector misses.
//!
//! Departures from the paper: every KV head of every sequence has its own random vectors; later
//! tokens are hashed in whole blocks.
//!
//! Joshi, Chowdhury, Bellinger, Kanakamedala, Singh, Le, Desai, Shrivastava (2026), "SOCKET: SOft
//! Collision Kernel EsTimator for Sparse Attention", <https://arxiv.org/abs/2602.06283>.

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, plugin::Tunable,
    register, typetag,
};

use vattention_index::{HashTableIndex, HashTables, Rule, TableBits, Transform};

/// Tokens with the largest soft collisions with the query in random hash tables.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of hash tables.
    #[serde(default = "default_tables")]
    pub tables: NonZeroU16,
    /// Number of signs in the hash of a table.
    #[serde(default)]
    pub bits: TableBits,
    /// Temperature of the softmax over buckets. With a lower one, signs that disagree count more.
    #[serde(default = "default_temperature")]
    pub temperature: Fraction,
}

/// Default of `tables`, the authors' 60.
fn default_tables() -> NonZeroU16 {
    const { NonZeroU16::new(60).unwrap() }
}

/// Default of `temperature`, the authors' 0.3.
fn default_temperature() -> Fraction {
    Fraction::try_from(0.3).expect("0.3 is between 0 and 1")
}

#[typetag::serde(name = "socket")]
impl SelectorConfig for Socket {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.build_selector(site)?))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

impl Socket {
    fn build_selector(&self, site: &Site) -> Result<SocketSelector> {
        let Self { tables, bits, size, .. } = *self;
        let (rule, transform) = (Rule::Any, Transform::Angular);
        let tables = HashTables { tables, bits, rule, transform, center: false };
        let root = (site.shape.head_dim as f32).sqrt();
        Ok(SocketSelector {
            size,
            tables: tables.index("socket", site)?,
            norms: Vec::new(),
            root,
            sharpness: 1.0 / (self.temperature.get() as f32 * root),
        })
    }
}

#[derive(Clone)]
struct SocketSelector {
    size: Size,
    tables: HashTableIndex,
    /// Norm of each value, `[tokens]`.
    norms: Vec<f32>,
    /// Square root of the dimension of keys.
    root: f32,
    /// Factor from the tanh of a product to `h`.
    sharpness: f32,
}

impl SocketSelector {
    /// Computes the scores of the tokens in the blocks that are wholly visible.
    fn scores(&self, row: &Row<'_>) -> Vec<f32> {
        let soften = |product: f32| self.sharpness * libm::tanhf(self.root * product);
        let mut scores = self.tables.soft_collisions(row, soften);
        scores.iter_mut().zip(&self.norms).for_each(|(score, norm)| *score *= norm);
        scores
    }
}

impl Selector for SocketSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.tables.append(new);
        let mut value = vec![0.0; new.values.dim()];
        for token in 0..new.values.len() {
            new.values.copy_row(token, &mut value);
            let square: f64 = value.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            self.norms.push(square.sqrt() as f32);
        }
    }

    fn index_bytes(&self) -> usize {
        self.tables.bytes() + size_of_val(&self.norms[..])
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("draws random hash tables for its own sequence")
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let visible = row.visible();
        let mut scores = self.scores(row);
        picks.take_range(scores.len()..visible);
        // The scores of picked tokens are not used.
        scores.resize(visible, 0.0);
        picks.take_top(self.size.to_tokens(visible), &scores);
    }
}

register!(
    Selector,
    "socket",
    Socket,
    "the tokens with the largest soft collisions with the query in random hash tables"
);

#[cfg(test)]
mod tests {
    use vattention_core::{Shape, Step, Tokens};
    use vattention_testkit::laws;

    use super::*;
    use crate::test_picks::pick;

    fn config(bits: u8) -> Socket {
        let tables = NonZeroU16::new(6).unwrap();
        let (bits, temperature) = (TableBits::new(bits), default_temperature());
        Socket { size: Size::Tokens(9), tables, bits, temperature }
    }

    laws!(four_bits, config(4));
    laws!(one_bit, config(1));

    /// One KV head in the file that `tools/make_retrieval_golden.py` writes.
    #[derive(Deserialize)]
    struct Case {
        config: Socket,
        seed: u64,
        sequence: u32,
        query_eighths: Vec<Vec<f32>>,
        key_eighths: Vec<Vec<f32>>,
        value_eighths: Vec<Vec<f32>>,
        taken: Vec<usize>,
        /// Scores of the tokens in whole blocks, for each query head.
        scores: Vec<Vec<f32>>,
        picks: Vec<Vec<usize>>,
    }

    #[test]
    fn scores_and_picks_match_the_golden_file() {
        let cases = include_str!("../../../tests/golden/socket.json");
        let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
        assert_eq!(cases.len(), 2);
        for case in cases {
            let (group, dim) = (case.query_eighths.len(), case.query_eighths[0].len());
            let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: dim };
            let Case { seed, sequence, .. } = case;
            let site = Site { seed, sequence, layer: 0, kv_head: 0, shape };
            let scale = shape.default_scale() / 8.0;
            let queries: Vec<f32> = case.query_eighths.concat().iter().map(|x| x * scale).collect();
            let [keys, values] = [&case.key_eighths, &case.value_eighths]
                .map(|rows| rows.concat().iter().map(|x| x / 8.0).collect::<Vec<f32>>());
            let [keys, values] =
                [&keys, &values].map(|rows| Tokens::new(rows, case.key_eighths.len(), dim));
            let mut selector = case.config.build_selector(&site).unwrap();
            selector.append(&NewTokens { first: 0, keys, values, classes: None });
            let step = Step::new(&site, &queries, keys, values);
            for (member, row) in step.rows().iter().enumerate() {
                let scores = selector.scores(row);
                assert_eq!(scores.len(), case.scores[member].len());
                for (score, expected) in scores.iter().zip(&case.scores[member]) {
                    assert!((score / expected - 1.0).abs() < 1e-4, "{score}, not {expected}");
                }
                assert_eq!(pick(&selector, row, &case.taken), case.picks[member]);
            }
        }
    }
}
