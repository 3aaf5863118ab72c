//! Least number of tokens that independent sampling needs for a promise if all keys and values are
//! known.
//!
//! Let `w = a (v − o)`, where `a` is a token's attention weight and `o` the output. A sample that
//! contains token `i` with probability `π_i`, independently of other tokens, has an output error of
//! covariance `S = Σ w w' (1/π − 1)`, to first order. Among all samples with the same expected
//! number of tokens, `π_i = min(1, t |w_i|)` has the least trace of `S`. The limit is the expected
//! number of tokens at the least `t` for which
//!
//! `q(δ, ν) Tr(S) ≤ (ε |o|)²`,
//!
//! where `q` is the quantile of a Gaussian vector's squared length (eq. 6) and
//! `ν = Tr(S)² / Tr(S²)` the effective rank. No sampler reaches the limit: the `π_i` depend on
//! every key and value.
//!
//! Cost: exact attention, and about twenty times O(visible · value_dim²) per row.

use ndarray::{Array1, ArrayView1, ArrayView2, Axis, s};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use vattention_core::Promise;
use vattention_estimators::formula::{c2, kappa};
use vattention_trace::TraceLayer;

use crate::Exact;

/// Limit of one row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowLimit {
    /// Query.
    pub query: usize,
    /// Query head.
    pub query_head: usize,
    /// Number of visible tokens.
    pub visible: usize,
    /// Expected number of tokens read, the always-read ones included.
    pub tokens: f64,
}

/// Tokens that every row always reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlwaysRead {
    /// Number of first tokens.
    pub sink: usize,
    /// Number of most recent tokens.
    pub window: usize,
}

impl AlwaysRead {
    fn contains(self, token: usize, visible: usize) -> bool {
        token < self.sink || token + self.window >= visible
    }
}

/// Computes the limits of a layer's last `queries` queries for a promise on the output, in (query,
/// query head) order, with queries multiplied by `scale`. Rows are computed in parallel.
pub fn compute_limits(
    layer: &TraceLayer,
    scale: f32,
    queries: usize,
    promise: &Promise,
    always_read: AlwaysRead,
) -> Vec<RowLimit> {
    let shape = layer.shape();
    let delta = promise.scope.row_delta(promise.delta.get(), shape.query_heads);
    let quantile = Quantile::new(delta, shape.value_dim);
    let exact = Exact::rows_with(layer, &shape, scale, queries, |exact, weights, _| {
        (exact, weights.to_owned())
    });
    let first = layer.queries.dim().1 - queries;
    let rows = exact.par_iter().enumerate().map(|(row, (exact, weights))| {
        let (query, query_head) = (first + row / shape.query_heads, row % shape.query_heads);
        let kv_head = query_head / shape.group();
        let visible = weights.len();
        let values = layer.values.slice(s![kv_head, ..visible, ..]).mapv(f64::from);
        let left: Vec<usize> =
            (0..visible).filter(|&token| !always_read.contains(token, visible)).collect();
        let mut w = (values - &exact.output).select(Axis(0), &left);
        let weights = weights.select(Axis(0), &left);
        w.rows_mut().into_iter().zip(&weights).for_each(|(mut w, a)| w *= *a);
        let tokens = (visible - left.len()) as f64
            + quantile.sample(w.view(), promise.epsilon.get() * norm(exact.output.view()));
        RowLimit { query, query_head, visible, tokens }
    });
    rows.collect()
}

/// Returns the least expected number of sampled tokens whose output error exceeds `tolerance` with
/// a probability of at most delta. `w = a (v − o)` has a row for each token that may be sampled,
/// `[tokens, value_dim]`.
pub fn compute_limit(w: ArrayView2<'_, f64>, tolerance: f64, delta: f64) -> f64 {
    Quantile::new(delta, w.ncols()).sample(w, tolerance)
}

/// Quantile `q(δ, ν)` at one delta.
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
        // The first `t` gives an expected number of at most one token.
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

    /// Returns `q(δ, ν) Tr(S)` of a sample with `π = min(1, t |w|)`.
    fn squared_error(&self, w: ArrayView2<'_, f64>, sizes: &Array1<f64>, t: f64) -> f64 {
        let drawn: Vec<usize> = (0..sizes.len()).filter(|&i| t * sizes[i] < 1.0).collect();
        let mut spread = w.select(Axis(0), &drawn);
        for (mut row, &i) in spread.rows_mut().into_iter().zip(&drawn) {
            row *= if sizes[i] > 0.0 { (1.0 / (t * sizes[i]) - 1.0).sqrt() } else { 0.0 };
        }
        let covariance = spread.t().dot(&spread);
        let trace = covariance.diag().sum();
        let trace_of_square: f64 = covariance.iter().map(|x| x * x).sum();
        if trace_of_square == 0.0 {
            return 0.0;
        }
        let rank = trace * trace / trace_of_square;
        self.c2.min(1.0 + self.kappa / rank.sqrt()) * trace
    }
}

fn norm(x: ArrayView1<'_, f64>) -> f64 {
    x.dot(&x).sqrt()
}

#[cfg(test)]
mod tests;
