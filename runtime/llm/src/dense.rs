//! Causal attention for prompts, computed in tiles so that logits stay in the cache.

use std::cell::RefCell;
use std::ops::Range;

use ndarray::{Array3, Axis};
use rayon::prelude::*;
use vattention_core::step::cap_logits;

use crate::attention_form::AttentionForm;
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
    pub(crate) form: AttentionForm<'a>,
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
        let AttentionForm { scale, soft_cap, sinks, window } = self.form;
        let sinks = sinks.map(|sinks| &sinks[head * group..(head + 1) * group]);
        let offset = head * group * head_dim;
        let dims = [group, head_dim, value_dim];
        tile.begin(queries, (self.query_width(), offset), dims, scale, sinks);
        for earlier in reads.map_or(&[][..], Reads::earlier).chunks(KEYS) {
            tile.read_gathered((keys, head_dim), (values, value_dim), earlier, soft_cap);
        }
        // First key that a token reads.
        let begin = |token: usize| window.map_or(0, |window| window.first(token));
        let from = reads.map_or(0, Reads::from).max(begin(first));
        for start in (from..visible).step_by(KEYS) {
            let size = KEYS.min(visible - start);
            let rows = |numbers, width: usize| {
                RowView::dense(row_range(numbers, start, size, width), size)
            };
            tile.compute_weights(rows(keys, head_dim), head_dim, soft_cap, |row| {
                let token = first + row / group;
                begin(token).saturating_sub(start)..(token + 1).saturating_sub(start)
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
    /// Copies and scales the queries of a group, which begin at `offset` within each token's
    /// queries, and resets the sums. A sink of the group's query heads is the first term of each
    /// denominator.
    fn begin(
        &mut self,
        queries: &[f32],
        (width, offset): (usize, usize),
        [group, head_dim, value_dim]: [usize; 3],
        scale: f32,
        sinks: Option<&[f32]>,
    ) {
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
        if let Some(sinks) = sinks {
            for row in 0..rows {
                self.largest[row] = sinks[row % group];
                self.totals[row] = 1.0;
            }
        }
    }

    /// Computes the weights of a block of keys, of which each row sees those of `visible(row)`.
    /// Rescales the sums so far to the new largest logit.
    fn compute_weights(
        &mut self,
        keys: RowView<'_>,
        head_dim: usize,
        soft_cap: Option<f32>,
        visible: impl Fn(usize) -> Range<usize>,
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
            let Range { start, end } = visible(row);
            let end = end.min(keys.count);
            let start = start.min(end);
            weights[..start].fill(0.0);
            weights[end..].fill(0.0);
            let shown = &mut weights[start..end];
            if shown.is_empty() {
                continue;
            }
            if let Some(cap) = soft_cap {
                cap_logits(shown, cap);
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
        soft_cap: Option<f32>,
    ) {
        let [mut gathered_keys, mut gathered_values] = std::mem::take(&mut self.gathered);
        gathered_keys.clear();
        gathered_values.clear();
        for &key in some {
            gathered_keys.extend_from_slice(row_range(keys, key, 1, head_dim));
            gathered_values.extend_from_slice(row_range(values, key, 1, value_dim));
        }
        let rows = RowView::dense(&gathered_keys, some.len());
        self.compute_weights(rows, head_dim, soft_cap, |_| 0..some.len());
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
mod tests;
