//! What one step learns from.

use std::ops::Range;

use candle_core::{Device, Tensor};
use ndarray::{ArrayView2, s};
use rand_chacha::rand_core::RngCore;
use vattention_eval::Layer;

use super::Settings;
use super::labels::{middle, top};

/// Some queries and tokens of one layer of one trace.
#[derive(Debug)]
pub(super) struct Batch {
    /// `[query_heads, queries, dim]`, not scaled.
    pub(super) queries: Tensor,
    /// `[query_heads, tokens, dim]`.
    pub(super) keys: Tensor,
    /// 1 where the key is one of the query's best, else 0, `[query_heads, queries, tokens]`.
    pub(super) labels: Tensor,
    /// What each of these counts: 0 where the query does not look, `[query_heads, queries, tokens]`.
    pub(super) weights: Tensor,
    /// How many count.
    pub(super) counted: usize,
}

impl Batch {
    /// Random queries among the first `queries` of the trace, and a random run of its tokens.
    pub(super) fn draw(
        layer: &Layer,
        queries: usize,
        settings: &Settings,
        rng: &mut impl RngCore,
    ) -> candle_core::Result<Self> {
        let chosen = some(queries, settings.queries.min(queries), rng);
        let tokens = layer.keys.dim().1;
        let length = settings.tokens.min(tokens);
        let first = below(tokens - length + 1, rng);
        Self::of(layer, &chosen, first..first + length, settings)
    }

    fn of(
        layer: &Layer,
        chosen: &[usize],
        run: Range<usize>,
        settings: &Settings,
    ) -> candle_core::Result<Self> {
        let (heads, group) = (layer.queries.dim().0, layer.shape().group());
        let size = [heads, chosen.len(), run.len()];
        let mut judged = Judged::default();
        let (mut queries, mut keys) = (Vec::new(), Vec::new());
        for head in 0..heads {
            let head_keys = layer.keys.slice(s![head / group, run.clone(), ..]);
            keys.extend(head_keys.iter());
            let rows = layer.queries.slice(s![head, .., ..]).select(ndarray::Axis(0), chosen);
            queries.extend(rows.iter());
            let scores = rows.dot(&head_keys.t());
            judged.push(scores.view(), settings, |row| {
                let all = layer.keys.dim().1;
                let seen = layer.visible.as_ref().map_or(all, |visible| visible[chosen[row]]);
                within(middle(seen), &run)
            });
        }
        let dim = layer.shape().head_dim;
        let tensor = |numbers, size: [usize; 3]| {
            Tensor::from_vec::<_, f32>(numbers, &size[..], &Device::Cpu)
        };
        Ok(Self {
            queries: tensor(queries, [heads, chosen.len(), dim])?,
            keys: tensor(keys, [heads, run.len(), dim])?,
            labels: tensor(judged.labels, size)?,
            weights: tensor(judged.weights, size)?,
            counted: judged.counted,
        })
    }
}

/// The labels and weights of some rows, one after the other.
#[derive(Default)]
struct Judged {
    labels: Vec<f32>,
    weights: Vec<f32>,
    counted: usize,
}

impl Judged {
    /// Adds the rows of one head, which look for tokens in `looked_at(row)`.
    fn push(
        &mut self,
        scores: ArrayView2<'_, f32>,
        settings: &Settings,
        looked_at: impl Fn(usize) -> Range<usize>,
    ) {
        for (row, scores) in scores.outer_iter().enumerate() {
            let (scores, looked_at) = (scores.to_vec(), looked_at(row));
            let start = self.labels.len();
            self.labels.resize(start + scores.len(), 0.0);
            self.weights.resize(start + scores.len(), 0.0);
            self.weights[start..][looked_at.clone()].fill(1.0);
            for place in top(&scores[looked_at.clone()], settings.top) {
                self.labels[start + looked_at.start + place] = 1.0;
                self.weights[start + looked_at.start + place] = settings.positive_weight as f32;
            }
            self.counted += looked_at.len();
        }
    }
}

/// The part of `tokens` that is in `run`, counted from its beginning; may be empty.
fn within(tokens: Range<usize>, run: &Range<usize>) -> Range<usize> {
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
