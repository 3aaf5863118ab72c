//! SampleAttention ([arXiv 2406.15486](https://arxiv.org/abs/2406.15486)): reads a window, and the
//! fewest columns that hold a given share of the sampled queries' attention.
//!
//! Each block chooses columns by itself, so that prompts with a common prefix can share its blocks.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use vattention_core::step::cap_logits;

use super::reads::{QueryBlock, Reads};
use crate::dense::softmax;
use crate::product::{RowView, Threads, WriteMode, times_transposed};

/// Parameters of SampleAttention. Each block of a prompt chooses columns separately, from some of
/// its queries and all keys up to its last token; the paper chooses once for the whole prompt. The
/// query heads of a KV head choose together.
///
/// Cost for a block of `count` tokens and a KV head: `sample · count` queries over all keys, and a
/// sort of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SampleAttention {
    /// Share of a block's tokens whose queries are sampled, evenly spaced and including the last
    /// token; above 0, at most 1.
    pub sample: f64,
    /// Least share of the sampled queries' attention weights that the columns hold, averaged over
    /// these queries; above 0. With 1 all keys are read. The sinks of a model do not count.
    pub coverage: f64,
    /// Least width of each query's window, as a share of the tokens up to the block's last;
    /// above 0, at most 1. The windows of a tile of 64 queries begin at the same key, that of the
    /// first query.
    pub window: f64,
}

impl Default for SampleAttention {
    /// Returns the parameters of the paper.
    fn default() -> Self {
        Self { sample: 0.05, coverage: 0.95, window: 0.08 }
    }
}

/// Fields in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SampleAttentionFields {
    #[serde(rename = "strategy")]
    _name: de::IgnoredAny,
    #[serde(deserialize_with = "read_share")]
    sample: f64,
    #[serde(deserialize_with = "read_share")]
    coverage: f64,
    #[serde(deserialize_with = "read_share")]
    window: f64,
}

impl Default for SampleAttentionFields {
    fn default() -> Self {
        let SampleAttention { sample, coverage, window } = SampleAttention::default();
        Self { _name: de::IgnoredAny, sample, coverage, window }
    }
}

impl<'de> Deserialize<'de> for SampleAttention {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SampleAttentionFields { sample, coverage, window, .. } =
            SampleAttentionFields::deserialize(deserializer)?;
        Ok(Self { sample, coverage, window })
    }
}

impl SampleAttention {
    /// Chooses the keys that each tile reads; `None` means dense attention.
    pub(super) fn choose(&self, block: &QueryBlock<'_>) -> Option<Vec<Reads>> {
        let window = self.window_tokens(block.visible());
        if self.coverage >= 1.0 || window >= block.visible() {
            return None;
        }
        let columns: Arc<[usize]> =
            choose_columns(&self.column_masses(block), self.coverage).into();
        let from = |first: usize| (first + 1).saturating_sub(window);
        Some(block.tiles().map(|first| Reads::new(&columns, from(first))).collect())
    }

    fn window_tokens(&self, visible: usize) -> usize {
        ((self.window * visible as f64).ceil() as usize).max(1)
    }

    /// Returns the tokens of a block of `count` tokens whose queries are sampled.
    fn sampled(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let sampled = ((self.sample * count as f64).ceil() as usize).clamp(1, count);
        (1..=sampled).map(move |i| i * count / sampled - 1)
    }

    /// Sums the attention weights of the sampled queries for each key, `[visible]`.
    fn column_masses(&self, block: &QueryBlock<'_>) -> Vec<f64> {
        let (visible, scale) = (block.visible(), block.form.scale);
        let mut masses = vec![0.0; visible];
        let mut queries = Vec::new();
        let mut weights = vec![0.0; block.group * visible];
        let keys = RowView::dense(&block.keys[..visible * block.head_dim], visible);
        for token in self.sampled(block.count()) {
            queries.clear();
            for head in 0..block.group {
                queries.extend(block.query(token, head).iter().map(|number| number * scale));
            }
            let rows = RowView::dense(&queries, block.group);
            times_transposed(
                rows,
                keys,
                block.head_dim,
                &mut weights,
                WriteMode::Overwrite,
                Threads::One,
            );
            for row in weights.chunks_exact_mut(visible) {
                let visible = &mut row[..=block.first + token];
                if let Some(cap) = block.form.soft_cap {
                    cap_logits(visible, cap);
                }
                softmax(visible);
                masses
                    .iter_mut()
                    .zip(visible)
                    .for_each(|(mass, weight)| *mass += f64::from(*weight));
            }
        }
        masses
    }
}

/// Returns the fewest keys that hold a share of the total mass, in ascending order. Of equal masses
/// the lower key comes first.
fn choose_columns(masses: &[f64], share: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..masses.len()).collect();
    order.sort_unstable_by(|&a, &b| masses[b].total_cmp(&masses[a]).then(a.cmp(&b)));
    let needed = share * masses.iter().sum::<f64>();
    let mut held = 0.0;
    let count = order.iter().position(|&key| {
        held += masses[key];
        held >= needed
    });
    order.truncate(count.map_or(masses.len(), |last| last + 1));
    order.sort_unstable();
    order
}

/// Reads a number above 0, at most 1.
fn read_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let share = f64::deserialize(deserializer)?;
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(de::Error::custom(format!("{share}; expected a number above 0, at most 1")))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;
    use proptest::prelude::*;

    use super::*;
    use crate::attention_form::AttentionForm;
    use crate::dense::Causal;
    use crate::prefill::reads::TILE;

    const HEAD_DIM: usize = 8;

    const FORM: AttentionForm<'static> =
        AttentionForm { scale: 0.353_553_4, soft_cap: None, sinks: None, window: None };

    /// Queries `[count, heads, 8]`, keys and values `[kv_heads, first + count, 8]`.
    struct Case {
        first: usize,
        group: usize,
        queries: Array3<f32>,
        keys: Array3<f32>,
        values: Array3<f32>,
    }

    impl Case {
        fn new(kv_heads: usize, group: usize, first: usize, count: usize, seed: f32) -> Self {
            let numbers = |dims, seed: f32, size: f32| {
                Array3::from_shape_fn(dims, |(i, j, k): (usize, usize, usize)| {
                    let place = i as f32 * 31.7 + j as f32 * 7.31 + k as f32 * 1.13;
                    ((place + seed).sin() * 999.7).sin() * size
                })
            };
            let tokens = first + count;
            Self {
                first,
                group,
                queries: numbers((count, kv_heads * group, HEAD_DIM), seed, 3.0),
                keys: numbers((kv_heads, tokens, HEAD_DIM), seed + 0.5, 3.0),
                values: numbers((kv_heads, tokens, HEAD_DIM), seed + 0.7, 1.0),
            }
        }

        fn block(&self, kv_head: usize) -> QueryBlock<'_> {
            let of_head = self.keys.index_axis(ndarray::Axis(0), kv_head);
            QueryBlock {
                queries: self.queries.as_slice().unwrap(),
                query_heads: self.queries.dim().1,
                first_head: kv_head * self.group,
                group: self.group,
                keys: of_head.to_slice().unwrap(),
                head_dim: HEAD_DIM,
                form: FORM,
                first: self.first,
            }
        }

        fn attend(&self, reads: &[Option<Vec<Reads>>]) -> Array3<f32> {
            let mut outputs = Array3::zeros(self.queries.dim());
            let (keys, values, query_heads) = (&self.keys, &self.values, self.queries.dim().1);
            Causal { query_heads, keys, values, first: self.first, reads, form: FORM }
                .attend(self.queries.as_slice().unwrap(), outputs.as_slice_mut().unwrap());
            outputs
        }

        fn choose(&self, sample: SampleAttention) -> Vec<Option<Vec<Reads>>> {
            (0..self.keys.dim().0).map(|head| sample.choose(&self.block(head))).collect()
        }

        /// Attention weights of a query over all keys up to its token, in f64.
        fn weights(&self, i: usize, head: usize) -> Vec<f64> {
            let query = self.queries.slice(ndarray::s![i, head, ..]);
            let logit = |key: usize| -> f64 {
                let key = self.keys.slice(ndarray::s![head / self.group, key, ..]);
                let dot = query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k));
                dot.sum::<f64>() / (HEAD_DIM as f64).sqrt()
            };
            let logits: Vec<f64> = (0..=self.first + i).map(logit).collect();
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            logits.iter().map(|logit| (logit - largest).exp() / total).collect()
        }

        /// Outputs by definition, in f64: the columns of the sampled queries' weights by a plain
        /// sort, the mask of each pair, and the attention over the mask.
        fn expected(&self, sample: SampleAttention) -> Vec<f64> {
            let (count, heads, _) = self.queries.dim();
            let visible = self.first + count;
            let window = ((sample.window * visible as f64).ceil() as usize).max(1);
            let mut outputs = Vec::new();
            let columns: Vec<Vec<usize>> =
                (0..self.keys.dim().0).map(|kv_head| self.columns(sample, kv_head)).collect();
            for i in 0..count {
                for head in 0..heads {
                    let kv_head = head / self.group;
                    let tile = self.first + i / TILE * TILE;
                    let is_read =
                        |key: usize| key + window > tile || columns[kv_head].contains(&key);
                    let weights = self.weights(i, head);
                    let read: Vec<usize> =
                        (0..=self.first + i).filter(|&key| is_read(key)).collect();
                    let total: f64 = read.iter().map(|&key| weights[key]).sum();
                    outputs.extend((0..HEAD_DIM).map(|d| -> f64 {
                        let value = |key: usize| f64::from(self.values[[kv_head, key, d]]);
                        read.iter().map(|&key| weights[key] * value(key)).sum::<f64>() / total
                    }));
                }
            }
            outputs
        }

        /// Mass of each key for a share of the queries, evenly spaced and including the last.
        fn mass(&self, share: f64, kv_head: usize) -> Vec<f64> {
            let count = self.queries.dim().0;
            let sampled = ((share * count as f64).ceil() as usize).clamp(1, count);
            let mut masses = vec![0.0; self.first + count];
            for i in (1..=sampled).map(|i| i * count / sampled - 1) {
                for head in kv_head * self.group..(kv_head + 1) * self.group {
                    let weights = self.weights(i, head);
                    masses.iter_mut().zip(weights).for_each(|(mass, weight)| *mass += weight);
                }
            }
            masses
        }

        fn columns(&self, sample: SampleAttention, kv_head: usize) -> Vec<usize> {
            let masses = self.mass(sample.sample, kv_head);
            let mut order: Vec<usize> = (0..masses.len()).collect();
            order.sort_by(|&a, &b| masses[b].total_cmp(&masses[a]));
            let all: f64 = masses.iter().sum();
            let enough = |n: usize| -> bool {
                order[..n].iter().map(|&key| masses[key]).sum::<f64>() >= sample.coverage * all
            };
            order.truncate((1..=order.len()).find(|&n| enough(n)).unwrap());
            order
        }
    }

    fn close(found: &Array3<f32>, expected: &[f64]) -> bool {
        found.iter().zip(expected).all(|(&a, &b)| (f64::from(a) - b).abs() < 1e-5)
    }

    #[test]
    fn attention_matches_the_mask_wherever_tiles_end() {
        for (kv_heads, group, first, count) in
            [(1, 1, 0, 1), (2, 3, 0, 70), (1, 2, 300, TILE + 1), (2, 1, 77, 2 * TILE)]
        {
            for (sample, coverage, window) in [(0.05, 0.5, 0.01), (0.3, 0.9, 0.2), (1.0, 0.8, 0.08)]
            {
                let sample = SampleAttention { sample, coverage, window };
                let case = Case::new(kv_heads, group, first, count, 0.3);
                let found = case.attend(&case.choose(sample));
                assert!(close(&found, &case.expected(sample)), "{first} {count} {sample:?}");
            }
        }
    }

    #[test]
    fn a_sparse_block_is_not_a_dense_one() {
        let case = Case::new(2, 2, 200, 100, 0.9);
        let sample = SampleAttention { coverage: 0.5, ..SampleAttention::default() };
        assert_ne!(case.attend(&case.choose(sample)), case.attend(&[]));
    }

    #[test]
    fn the_last_token_of_a_block_is_sampled() {
        let sampled = |share, count| -> Vec<usize> {
            SampleAttention { sample: share, ..SampleAttention::default() }.sampled(count).collect()
        };
        assert_eq!(sampled(0.05, 1), [0]);
        assert_eq!(sampled(0.05, 60), [19, 39, 59]);
        assert_eq!(sampled(1.0, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn of_equal_masses_the_lower_key_comes_first() {
        assert_eq!(choose_columns(&[1.0, 2.0, 1.0, 1.0], 0.6), [0, 1]);
        assert_eq!(choose_columns(&[0.0, 0.0, 5.0], 0.99), [2]);
        assert_eq!(choose_columns(&[1.0; 10], 0.95).len(), 10);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            cases: 60,
            ..ProptestConfig::default()
        })]
        /// All columns, or a window over everything, equals dense attention to the last bit.
        #[test]
        fn all_keys_are_dense_attention(
            first in 0_usize..200, count in 1_usize..140,
            share in 0.01_f64..1.0, seed in 0.0_f32..9.0, by_coverage: bool,
        ) {
            let case = Case::new(2, 2, first, count, seed);
            let (coverage, window) = if by_coverage { (1.0, share) } else { (share, 1.0) };
            let reads = case.choose(SampleAttention { sample: share, coverage, window });
            prop_assert_eq!(case.attend(&reads), case.attend(&[]));
        }

        /// Each query reads its window, and the keys that a tile reads hold the coverage of the
        /// sampled queries.
        #[test]
        fn window_and_coverage_are_guaranteed(
            first in 0_usize..200, count in 1_usize..140, seed in 0.0_f32..9.0,
            sample in 0.01_f64..1.0, coverage in 0.1_f64..0.99, window in 0.01_f64..0.5,
        ) {
            let case = Case::new(2, 2, first, count, seed);
            let strategy = SampleAttention { sample, coverage, window };
            for kv_head in 0..2 {
                let Some(tiles) = strategy.choose(&case.block(kv_head)) else { continue };
                prop_assert_eq!(tiles.len(), count.div_ceil(TILE));
                let masses = case.mass(sample, kv_head);
                let all: f64 = masses.iter().sum();
                for (i, reads) in tiles.iter().enumerate() {
                    let tile = first + i * TILE;
                    let width = (window * (first + count) as f64).ceil() as usize;
                    prop_assert!(reads.from() + width <= tile + 1 || reads.from() == 0);
                    prop_assert!(reads.earlier().is_sorted_by(|a, b| a < b));
                    prop_assert!(reads.earlier().iter().all(|&key| key < reads.from()));
                    let held: f64 = reads.earlier().iter().map(|&key| masses[key]).sum::<f64>()
                        + masses[reads.from()..].iter().sum::<f64>();
                    prop_assert!(held >= coverage * all - 1e-4 * all, "{} of {}", held, all);
                }
            }
        }
    }
}
