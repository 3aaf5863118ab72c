//! Causal attention for prompts, computed in tiles so that logits stay in the cache.

use std::cell::RefCell;

use ndarray::{Array3, Axis};
use rayon::prelude::*;

use crate::exponential::exp_all;
use crate::prefill::reads::{Reads, TILE as QUERIES};
use crate::product::{RowView, Threads, WriteMode, times, times_transposed};

/// Number of keys in a tile.
const KEYS: usize = 256;

/// Attention of the queries of consecutive tokens, beginning with token `first`, over the keys
/// `[kv_heads, tokens, head_dim]` and values `[kv_heads, tokens, value_dim]` up to each token.
pub(crate) struct Causal<'a> {
    pub(crate) query_heads: usize,
    pub(crate) keys: &'a Array3<f32>,
    pub(crate) values: &'a Array3<f32>,
    pub(crate) first: usize,
    /// Keys that each tile of queries reads, `[kv_heads][tiles]`. A KV head that is `None` or
    /// missing reads all keys up to each token.
    pub(crate) reads: &'a [Option<Vec<Reads>>],
}

/// Scratch memory of a thread for one tile.
#[derive(Default)]
struct Tile {
    /// `[rows, head_dim]`, scaled.
    queries: Vec<f32>,
    /// `[rows, keys]`: logits, then weights.
    weights: Vec<f32>,
    /// `[rows, value_dim]`
    sums: Vec<f32>,
    /// `[rows]`
    totals: Vec<f32>,
    /// Largest logits so far, `[rows]`, which are subtracted before exponentiation.
    largest: Vec<f32>,
    /// Keys gathered from separate positions, `[keys, head_dim]`, and their values.
    gathered: [Vec<f32>; 2],
}

impl Causal<'_> {
    /// Computes outputs `[count, query_heads, value_dim]` from queries
    /// `[count, query_heads, head_dim]`.
    pub(crate) fn attend(&self, queries: &[f32], outputs: &mut [f32]) {
        thread_local! {
            static TILE: RefCell<Tile> = RefCell::default();
        }
        let (query, output) = (self.query_width(), self.output_width());
        let blocks =
            queries.par_chunks(QUERIES * query).zip(outputs.par_chunks_mut(QUERIES * output));
        blocks.enumerate().for_each(|(block, (queries, outputs))| {
            let first = self.first + block * QUERIES;
            for head in 0..self.keys.dim().0 {
                let reads = self.reads.get(head).and_then(Option::as_ref);
                let reads = reads.map(|tiles| &tiles[block]);
                TILE.with_borrow_mut(|tile| {
                    self.attend_group((head, reads), first, queries, outputs, tile);
                });
            }
        });
    }

    fn query_width(&self) -> usize {
        self.query_heads * self.keys.dim().2
    }

    fn output_width(&self) -> usize {
        self.query_heads * self.values.dim().2
    }

    /// Attends with the query heads of one KV head, for the queries of tokens from `first` on. The
    /// rows of a tile are pairs of a token and a query head, in the order of tokens.
    fn attend_group(
        &self,
        (head, reads): (usize, Option<&Reads>),
        first: usize,
        queries: &[f32],
        outputs: &mut [f32],
        tile: &mut Tile,
    ) {
        let (kv_heads, _, head_dim) = self.keys.dim();
        let value_dim = self.values.dim().2;
        let group = self.query_heads / kv_heads;
        let (keys, values) = (head_rows(self.keys, head), head_rows(self.values, head));
        let count = queries.len() / self.query_width();
        let visible = first + count;
        tile.begin(
            queries,
            (self.query_width(), head * group * head_dim),
            group,
            head_dim,
            value_dim,
        );
        for earlier in reads.map_or(&[][..], Reads::earlier).chunks(KEYS) {
            tile.read_gathered((keys, head_dim), (values, value_dim), earlier);
        }
        for start in (reads.map_or(0, Reads::from)..visible).step_by(KEYS) {
            let size = KEYS.min(visible - start);
            let rows = |numbers, width: usize| {
                RowView::dense(row_range(numbers, start, size, width), size)
            };
            tile.compute_weights(rows(keys, head_dim), head_dim, |row| {
                (first + row / group + 1).saturating_sub(start)
            });
            tile.add_values(rows(values, value_dim), value_dim);
        }
        let width = self.output_width();
        for (row, (sums, total)) in tile.sums.chunks_exact(value_dim).zip(&tile.totals).enumerate()
        {
            let offset = (row / group) * width + (head * group + row % group) * value_dim;
            let output = &mut outputs[offset..offset + value_dim];
            output.iter_mut().zip(sums).for_each(|(output, sum)| *output = sum / total);
        }
    }
}

/// Rows of one head of `[heads, tokens, dim]`.
fn head_rows(array: &Array3<f32>, head: usize) -> &[f32] {
    array.index_axis(Axis(0), head).to_slice().expect("arrays in standard order")
}

/// Rows `start .. start + size` of `[.., width]`.
fn row_range(numbers: &[f32], start: usize, size: usize, width: usize) -> &[f32] {
    &numbers[start * width..(start + size) * width]
}

impl Tile {
    /// Copies the queries of a group, which begin at `offset` within each token's queries, and
    /// resets the sums.
    fn begin(
        &mut self,
        queries: &[f32],
        (width, offset): (usize, usize),
        group: usize,
        head_dim: usize,
        value_dim: usize,
    ) {
        let scale = 1.0 / (head_dim as f32).sqrt();
        self.queries.clear();
        for token in queries.chunks_exact(width) {
            let heads = &token[offset..offset + group * head_dim];
            self.queries.extend(heads.iter().map(|number| number * scale));
        }
        let rows = self.queries.len() / head_dim;
        let fill = |numbers: &mut Vec<f32>, count, number| {
            numbers.clear();
            numbers.resize(count, number);
        };
        fill(&mut self.sums, rows * value_dim, 0.0);
        fill(&mut self.totals, rows, 0.0);
        fill(&mut self.largest, rows, f32::NEG_INFINITY);
    }

    /// Computes the weights of a block of keys, of which each row sees the first `visible(row)`.
    /// Rescales the sums so far to the new largest logit.
    fn compute_weights(
        &mut self,
        keys: RowView<'_>,
        head_dim: usize,
        visible: impl Fn(usize) -> usize,
    ) {
        let rows = self.totals.len();
        self.weights.resize(rows * keys.count, 0.0);
        let queries = RowView::dense(&self.queries, rows);
        times_transposed(
            queries,
            keys,
            head_dim,
            &mut self.weights,
            WriteMode::Overwrite,
            Threads::One,
        );
        let value_dim = self.sums.len() / rows;
        for (row, weights) in self.weights.chunks_exact_mut(keys.count).enumerate() {
            let sums = &mut self.sums[row * value_dim..(row + 1) * value_dim];
            let (total, largest) = (&mut self.totals[row], &mut self.largest[row]);
            let (shown, hidden) = weights.split_at_mut(visible(row).min(keys.count));
            hidden.fill(0.0);
            if shown.is_empty() {
                continue;
            }
            let larger = maximum(shown).max(*largest);
            if larger > *largest {
                let before = (*largest - larger).exp();
                *total *= before;
                for sum in sums.iter_mut() {
                    *sum *= before;
                }
                *largest = larger;
            }
            for logit in shown.iter_mut() {
                *logit -= larger;
            }
            exp_all(shown);
            *total += sum(shown);
        }
    }

    /// Computes the weights of gathered keys, which all rows see, and adds their values.
    fn read_gathered(
        &mut self,
        (keys, head_dim): (&[f32], usize),
        (values, value_dim): (&[f32], usize),
        some: &[usize],
    ) {
        let [mut gathered_keys, mut gathered_values] = std::mem::take(&mut self.gathered);
        gathered_keys.clear();
        gathered_values.clear();
        for &key in some {
            gathered_keys.extend_from_slice(row_range(keys, key, 1, head_dim));
            gathered_values.extend_from_slice(row_range(values, key, 1, value_dim));
        }
        self.compute_weights(RowView::dense(&gathered_keys, some.len()), head_dim, |_| some.len());
        self.add_values(RowView::dense(&gathered_values, some.len()), value_dim);
        self.gathered = [gathered_keys, gathered_values];
    }

    /// Adds the values of the keys, with the weights that were computed last.
    fn add_values(&mut self, values: RowView<'_>, value_dim: usize) {
        let weights = RowView::dense(&self.weights, self.totals.len());
        times(weights, values, value_dim, &mut self.sums, WriteMode::Add, Threads::One);
    }
}

/// Replaces logits by their softmax.
pub(crate) fn softmax(logits: &mut [f32]) {
    let largest = maximum(logits);
    for logit in logits.iter_mut() {
        *logit -= largest;
    }
    exp_all(logits);
    let total = sum(logits);
    for weight in logits.iter_mut() {
        *weight /= total;
    }
}

/// Number of independent accumulators, for vector instructions.
const LANES: usize = 16;

fn fold(numbers: &[f32], start: f32, with: impl Fn(f32, f32) -> f32) -> f32 {
    let (lanes, rest) = numbers.as_chunks::<LANES>();
    let mut folded = [start; LANES];
    for lane in lanes {
        for i in 0..LANES {
            folded[i] = with(folded[i], lane[i]);
        }
    }
    rest.iter().chain(&folded).fold(start, |a, &b| with(a, b))
}

fn maximum(numbers: &[f32]) -> f32 {
    fold(numbers, f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

fn sum(numbers: &[f32]) -> f32 {
    fold(numbers, 0.0, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns numbers that do not repeat, `[a, b, c]`.
    fn numbers(dims: (usize, usize, usize), seed: f32) -> Array3<f32> {
        Array3::from_shape_fn(dims, |(i, j, k)| {
            ((i as f32 * 31.0 + j as f32 * 7.3 + k as f32 + seed) * 1.7).sin() * 2.0
        })
    }

    /// Computes one row of attention by its definition, in f64.
    fn row(query: &[f32], keys: &[f32], values: &[f32], tokens: usize) -> Vec<f64> {
        let (head_dim, value_dim) = (query.len(), values.len() / tokens);
        let dot = |key: &[f32]| -> f64 {
            query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
        };
        let weight = |key| (dot(key) / (head_dim as f64).sqrt()).exp();
        let weights: Vec<f64> = keys.chunks_exact(head_dim).map(weight).collect();
        let total: f64 = weights.iter().sum();
        let output = |i: usize| -> f64 {
            let values = values.chunks_exact(value_dim);
            weights.iter().zip(values).map(|(w, value)| w * f64::from(value[i])).sum()
        };
        (0..value_dim).map(|i| output(i) / total).collect()
    }

    #[test]
    fn attention_matches_its_definition_wherever_tiles_end() {
        let (head_dim, value_dim) = (4, 6);
        for (kv_heads, group) in [(1, 1), (2, 3)] {
            for (first, count) in
                [(0, 1), (0, 5), (3, QUERIES + 1), (KEYS - 2, 5), (700, 2 * QUERIES)]
            {
                let (heads, tokens) = (kv_heads * group, first + count);
                let keys = numbers((kv_heads, tokens, head_dim), 0.3);
                let values = numbers((kv_heads, tokens, value_dim), 0.6);
                let queries = numbers((count, heads, head_dim), 0.0);
                let causal =
                    Causal { query_heads: heads, keys: &keys, values: &values, first, reads: &[] };
                let mut found = Array3::zeros((count, heads, value_dim));
                causal.attend(queries.as_slice().unwrap(), found.as_slice_mut().unwrap());
                for i in 0..count {
                    for head in 0..heads {
                        let visible = first + i + 1;
                        let (k, v) = (
                            keys.index_axis(Axis(0), head / group),
                            values.index_axis(Axis(0), head / group),
                        );
                        let query = queries.slice(ndarray::s![i, head, ..]);
                        let expected = row(
                            query.as_slice().unwrap(),
                            &k.as_slice().unwrap()[..visible * head_dim],
                            &v.as_slice().unwrap()[..visible * value_dim],
                            visible,
                        );
                        let found = found.slice(ndarray::s![i, head, ..]);
                        let close = |(&a, &b): (&f32, &f64)| (f64::from(a) - b).abs() < 1e-5;
                        assert!(
                            found.iter().zip(&expected).all(close),
                            "{first} {count}: {i} {head}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn growing_logits_do_not_overflow() {
        let tokens = 3 * KEYS;
        let keys = Array3::from_shape_fn((1, tokens, 2), |(_, token, _)| token as f32);
        let values = Array3::from_shape_fn((1, tokens, 1), |(_, token, _)| token as f32);
        let causal =
            Causal { query_heads: 1, keys: &keys, values: &values, first: tokens - 1, reads: &[] };
        let mut output = [0.0];
        causal.attend(&[30.0, 30.0], &mut output);
        assert!((output[0] - (tokens - 1) as f32).abs() < 1e-3, "{output:?}");
    }
}
