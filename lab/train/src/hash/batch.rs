//! What one step learns from.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use ndarray::{ArrayView1, ArrayView2, Axis, s};
use rand_chacha::rand_core::RngCore;
use rayon::prelude::*;
use vattention_trace::TraceLayer;

use super::TrainingSettings;
use super::labels::{middle, top};

/// Tokens of a batch. What the networks make of them stays in a core's cache; and it is too little
/// for the tensor library to spread over threads, which are busy with other batches.
const TOKENS: usize = 1000;

/// Some queries and tokens of one head of one trace.
#[derive(Debug)]
pub(super) struct Batch {
    /// The query head.
    pub(super) head: usize,
    /// `[1, queries, dim]`, not scaled.
    pub(super) queries: Tensor,
    /// `[1, tokens, dim]`.
    pub(super) keys: Tensor,
    /// What each query should find.
    pub(super) wanted: Vec<Wanted>,
}

/// What a query should find among some tokens.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Where it looks; others count for nothing.
    pub(super) looked_at: Range<usize>,
    /// Its best keys there, in no order.
    pub(super) best: Vec<usize>,
}

/// Random queries of a trace, and a random run of its tokens: what all heads learn from in a step.
pub(super) struct DrawnBatch {
    pub(super) queries: Vec<usize>,
    pub(super) run: Range<usize>,
}

impl DrawnBatch {
    /// `queries` of the first `among`, and a run of `tokens`, or as many as there are.
    pub(super) fn new(
        layer: &TraceLayer,
        among: usize,
        (queries, tokens): (usize, usize),
        rng: &mut impl RngCore,
    ) -> Self {
        let queries = some(among, queries.min(among), rng);
        let all = layer.keys.dim().1;
        let length = tokens.min(all);
        let first = below(all - length + 1, rng);
        Self { queries, run: first..first + length }
    }
}

impl Batch {
    /// Random queries among the first `queries` of the trace, and a random run of its tokens: the same
    /// for all query heads, in some batches for each.
    ///
    /// # Errors
    /// What the tensor library refuses.
    pub(super) fn draw(
        layer: &TraceLayer,
        queries: usize,
        settings: &TrainingSettings,
        rng: &mut impl RngCore,
    ) -> Result<Vec<Self>> {
        let drawn = DrawnBatch::new(layer, queries, (settings.queries, settings.tokens), rng);
        let of = |head| Self::of(layer, head, &drawn.queries, drawn.run.clone(), settings.top);
        let heads = (0..layer.shape().query_heads).into_par_iter().map(of);
        Ok(heads.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// One head's, which together hold the `run` of tokens.
    fn of(
        layer: &TraceLayer,
        head: usize,
        chosen: &[usize],
        run: Range<usize>,
        best: usize,
    ) -> Result<Vec<Self>> {
        let queries = layer.queries.slice(s![head, .., ..]).select(Axis(0), chosen);
        let keys = layer.keys.slice(s![head / layer.shape().group(), run.clone(), ..]);
        let scores = queries.dot(&keys.t());
        let wanted = |(scores, &query): (ArrayView1<'_, f32>, &usize)| {
            let looked_at = within(middle(layer.visible_to(query)), &run);
            let best = top(&scores.to_vec()[looked_at.clone()], best);
            Wanted { best: best.iter().map(|place| looked_at.start + place).collect(), looked_at }
        };
        let wanted: Vec<Wanted> = scores.outer_iter().zip(chosen).map(wanted).collect();
        let queries = tensor(queries.view())?;
        let batch = |first: usize| {
            let part = first..run.len().min(first + TOKENS);
            Ok(Self {
                head,
                queries: queries.clone(),
                keys: tensor(keys.slice(s![part.clone(), ..]))?,
                wanted: wanted.iter().map(|wanted| wanted.among(&part)).collect(),
            })
        };
        (0..run.len()).step_by(TOKENS).map(batch).collect()
    }

    /// Pairs of a query and a key that count.
    pub(super) fn counted(&self) -> usize {
        self.wanted.iter().map(|wanted| wanted.looked_at.len()).sum()
    }
}

impl Wanted {
    /// What of it is in `part`, counted from its beginning.
    fn among(&self, part: &Range<usize>) -> Self {
        let best = self.best.iter().filter(|key| part.contains(key));
        Self {
            looked_at: within(self.looked_at.clone(), part),
            best: best.map(|key| key - part.start).collect(),
        }
    }
}

/// `[1, rows, columns]`.
fn tensor(rows: ArrayView2<'_, f32>) -> Result<Tensor> {
    let (count, columns) = rows.dim();
    Tensor::from_vec(rows.iter().copied().collect(), (1, count, columns), &Device::Cpu)
}

/// The part of `tokens` that is in `run`, counted from its beginning; may be empty.
pub(super) fn within(tokens: Range<usize>, run: &Range<usize>) -> Range<usize> {
    let place = |token: usize| token.clamp(run.start, run.end) - run.start;
    place(tokens.start)..place(tokens.end)
}

/// A number below `n`, as good as uniform.
pub(super) fn below(n: usize, rng: &mut impl RngCore) -> usize {
    (rng.next_u64() % n as u64) as usize
}

/// `count` different numbers below `n`.
fn some(n: usize, count: usize, rng: &mut impl RngCore) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    for i in 0..count {
        all.swap(i, i + below(n - i, rng));
    }
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests;
