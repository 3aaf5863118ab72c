//! Batches of queries and tokens for a training step.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use ndarray::{ArrayView1, ArrayView2, Axis, s};
use rand_chacha::rand_core::RngCore;
use rayon::prelude::*;
use vattention_trace::TraceLayer;

use super::TrainingSettings;
use super::labels::{middle, top};

/// Maximum number of tokens of a batch. The networks' activations then stay in a core's cache, and
/// the tensor library uses no further threads, which are busy with other batches.
const TOKENS: usize = 1000;

/// Queries and tokens of one query head of one trace.
#[derive(Debug)]
pub(super) struct Batch {
    /// Query head.
    pub(super) head: usize,
    /// `[1, queries, dim]`, not scaled.
    pub(super) queries: Tensor,
    /// `[1, tokens, dim]`.
    pub(super) keys: Tensor,
    /// Labels of each query.
    pub(super) labels: Vec<QueryLabels>,
}

/// Labels of a query's pairs with the tokens of a batch.
#[derive(Clone, Debug)]
pub(super) struct QueryLabels {
    /// Tokens whose pairs count in the loss.
    pub(super) range: Range<usize>,
    /// Keys in the range that the query should find, in arbitrary order.
    pub(super) positives: Vec<usize>,
}

/// Random queries of a trace, and a random run of its tokens, on which all heads train in a step.
pub(super) struct DrawnBatch {
    pub(super) queries: Vec<usize>,
    pub(super) run: Range<usize>,
}

impl DrawnBatch {
    /// Draws `queries` of the first `among` queries, and a run of `tokens` tokens; fewer if the
    /// trace has fewer.
    pub(super) fn new(
        layer: &TraceLayer,
        among: usize,
        (queries, tokens): (usize, usize),
        rng: &mut impl RngCore,
    ) -> Self {
        let queries = draw_distinct(among, queries.min(among), rng);
        let all = layer.keys.dim().1;
        let length = tokens.min(all);
        let first = below(all - length + 1, rng);
        Self { queries, run: first..first + length }
    }
}

impl Batch {
    /// Draws random queries among the first `queries` of the trace, and a random run of its tokens,
    /// which are the same for all query heads. Each head has one or more batches.
    ///
    /// # Errors
    /// Errors of the tensor library.
    pub(super) fn draw(
        layer: &TraceLayer,
        queries: usize,
        settings: &TrainingSettings,
        rng: &mut impl RngCore,
    ) -> Result<Vec<Self>> {
        let drawn = DrawnBatch::new(layer, queries, (settings.queries, settings.tokens), rng);
        let split =
            |head| Self::split(layer, head, &drawn.queries, drawn.run.clone(), settings.top);
        let heads = (0..layer.shape().query_heads).into_par_iter().map(split);
        Ok(heads.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Returns the batches of one head, which together contain the `run` of tokens.
    fn split(
        layer: &TraceLayer,
        head: usize,
        chosen: &[usize],
        run: Range<usize>,
        best: usize,
    ) -> Result<Vec<Self>> {
        let queries = layer.queries.slice(s![head, .., ..]).select(Axis(0), chosen);
        let keys = layer.keys.slice(s![head / layer.shape().group(), run.clone(), ..]);
        let scores = queries.dot(&keys.t());
        let label = |(scores, &query): (ArrayView1<'_, f32>, &usize)| {
            let range = within(middle(layer.visible_to(query)), &run);
            let best = top(&scores.to_vec()[range.clone()], best);
            let positives = best.iter().map(|place| range.start + place).collect();
            QueryLabels { range, positives }
        };
        let labels: Vec<QueryLabels> = scores.outer_iter().zip(chosen).map(label).collect();
        let queries = tensor(queries.view())?;
        let batch = |first: usize| {
            let part = first..run.len().min(first + TOKENS);
            Ok(Self {
                head,
                queries: queries.clone(),
                keys: tensor(keys.slice(s![part.clone(), ..]))?,
                labels: labels.iter().map(|labels| labels.within(&part)).collect(),
            })
        };
        (0..run.len()).step_by(TOKENS).map(batch).collect()
    }

    /// Returns the number of pairs of a query and a key that count in the loss.
    pub(super) fn counted(&self) -> usize {
        self.labels.iter().map(|labels| labels.range.len()).sum()
    }
}

impl QueryLabels {
    /// Returns the labels of the tokens in `part`, counted from its beginning.
    fn within(&self, part: &Range<usize>) -> Self {
        let positives = self.positives.iter().filter(|key| part.contains(key));
        Self {
            range: within(self.range.clone(), part),
            positives: positives.map(|key| key - part.start).collect(),
        }
    }
}

/// Returns a tensor `[1, rows, columns]`.
fn tensor(rows: ArrayView2<'_, f32>) -> Result<Tensor> {
    let (count, columns) = rows.dim();
    Tensor::from_vec(rows.iter().copied().collect(), (1, count, columns), &Device::Cpu)
}

/// Returns the part of `tokens` that is in `run`, counted from the run's beginning; may be empty.
pub(super) fn within(tokens: Range<usize>, run: &Range<usize>) -> Range<usize> {
    let place = |token: usize| token.clamp(run.start, run.end) - run.start;
    place(tokens.start)..place(tokens.end)
}

/// Draws a number below `n`, with a negligible deviation from the uniform distribution.
pub(super) fn below(n: usize, rng: &mut impl RngCore) -> usize {
    (rng.next_u64() % n as u64) as usize
}

/// Draws `count` different numbers below `n`.
fn draw_distinct(n: usize, count: usize, rng: &mut impl RngCore) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    for i in 0..count {
        all.swap(i, i + below(n - i, rng));
    }
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests;
