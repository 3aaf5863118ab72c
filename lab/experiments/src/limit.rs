//! The fewest tokens that independent sampling needs for a promise when everything is known.
//!
//! With `w = a (v − o)`, `a` being a token's attention and `o` the output, a sample that holds token
//! `i` with probability `π_i`, independently of others, misses the output by a vector of covariance
//! `S = Σ w w' (1/π − 1)`, to first order. Of all samples with the same expected number of tokens
//! that with `π_i = min(1, t |w_i|)` has the least trace of `S`. The limit is its expected number
//! of tokens at the least `t` for which
//!
//! `q(δ, ν) Tr(S) ≤ (ε |o|)²`,
//!
//! `q` being the quantile of a Gaussian vector's squared length (eq. 6) and `ν = Tr(S)² / Tr(S²)`
//! the effective rank. No sampler has it: it takes every key and value to know the `π_i`.
//!
//! Cost: exact attention, and some twenty times O(visible · value_dim²) per row.

use ndarray::{Array1, ArrayView1, ArrayView2, Axis, s};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use vattention_core::Promise;
use vattention_estimators::formula::{c2, kappa};
use vattention_trace::TraceLayer;

use crate::Exact;

/// The limit of one row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowLimit {
    /// The query.
    pub query: usize,
    /// The query head.
    pub query_head: usize,
    /// Tokens that the row may read.
    pub visible: usize,
    /// Tokens that it reads on average, the certain ones included.
    pub tokens: f64,
}

/// Tokens that every row reads for certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Certain {
    /// The first ones.
    pub sink: usize,
    /// The most recent ones.
    pub window: usize,
}

impl Certain {
    fn holds(self, token: usize, visible: usize) -> bool {
        token < self.sink || token + self.window >= visible
    }
}

/// The limits of a layer's last `queries` queries for a promise of the output, in (query, query
/// head) order, with queries multiplied by `scale`. Rows in parallel.
pub fn limits(
    layer: &TraceLayer,
    scale: f32,
    queries: usize,
    promise: &Promise,
    certain: Certain,
) -> Vec<RowLimit> {
    let shape = layer.shape();
    let delta = promise.scope.share_of(promise.delta.get(), shape.query_heads);
    let quantile = Quantile::new(delta, shape.value_dim);
    let exact = Exact::rows_with(layer, &shape, scale, queries, |exact, weights| {
        (exact, weights.to_owned())
    });
    let first = layer.queries.dim().1 - queries;
    let rows = exact.par_iter().enumerate().map(|(row, (exact, weights))| {
        let (query, query_head) = (first + row / shape.query_heads, row % shape.query_heads);
        let kv_head = query_head / shape.group();
        let visible = weights.len();
        let values = layer.values.slice(s![kv_head, ..visible, ..]).mapv(f64::from);
        let left: Vec<usize> =
            (0..visible).filter(|&token| !certain.holds(token, visible)).collect();
        let mut w = (values - &exact.output).select(Axis(0), &left);
        let weights = weights.select(Axis(0), &left);
        w.rows_mut().into_iter().zip(&weights).for_each(|(mut w, a)| w *= *a);
        let tokens = (visible - left.len()) as f64
            + quantile.sample(w.view(), promise.epsilon.get() * norm(exact.output.view()));
        RowLimit { query, query_head, visible, tokens }
    });
    rows.collect()
}

/// The expected number of tokens that must be sampled, from `w = a (v − o)` of those that may be,
/// `[tokens, value_dim]`, to miss the output by no more than `tolerance` but for probability delta.
pub fn limit(w: ArrayView2<'_, f64>, tolerance: f64, delta: f64) -> f64 {
    Quantile::new(delta, w.ncols()).sample(w, tolerance)
}

/// `q(δ, ν)` at one delta.
struct Quantile {
    c2: f64,
    kappa: f64,
}

impl Quantile {
    fn new(delta: f64, rank: usize) -> Self {
        Self { c2: c2(delta, rank), kappa: kappa(delta) }
    }

    fn sample(&self, w: ArrayView2<'_, f64>, tolerance: f64) -> f64 {
        let sizes: Array1<f64> = w.rows().into_iter().map(norm).collect();
        let enough = |t: f64| self.squared_error(w, &sizes, t) <= tolerance * tolerance;
        let total = sizes.sum();
        if total == 0.0 {
            return 0.0;
        }
        // At the first threshold one token is expected, at most.
        let mut low = 1.0 / total;
        let mut high = 2.0 * low;
        while !enough(high) {
            (low, high) = (high, 2.0 * high);
        }
        while high / low > 1.0 + 1e-5 {
            let middle = (low * high).sqrt();
            if enough(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        sizes.iter().map(|size| (high * size).min(1.0)).sum()
    }

    /// `q(δ, ν) Tr(S)` of a sample with `π = min(1, t |w|)`.
    fn squared_error(&self, w: ArrayView2<'_, f64>, sizes: &Array1<f64>, t: f64) -> f64 {
        let drawn: Vec<usize> = (0..sizes.len()).filter(|&i| t * sizes[i] < 1.0).collect();
        let mut spread = w.select(Axis(0), &drawn);
        for (mut row, &i) in spread.rows_mut().into_iter().zip(&drawn) {
            row *= if sizes[i] > 0.0 { (1.0 / (t * sizes[i]) - 1.0).sqrt() } else { 0.0 };
        }
        let covariance = spread.t().dot(&spread);
        let trace = covariance.diag().sum();
        let of_square: f64 = covariance.iter().map(|x| x * x).sum();
        if of_square == 0.0 {
            return 0.0;
        }
        let rank = trace * trace / of_square;
        self.c2.min(1.0 + self.kappa / rank.sqrt()) * trace
    }
}

fn norm(x: ArrayView1<'_, f64>) -> f64 {
    x.dot(&x).sqrt()
}

#[cfg(test)]
mod tests;
