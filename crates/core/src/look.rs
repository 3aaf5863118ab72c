//! What a sample of any design says of its own error: the definition, in f64.
//!
//! With `w = e (v − o^)` the output's error is `W^ / D^`. The variances of `W^`, `N^` and `D^` at a size
//! are `Σ φ |x − m|²` over the sample, `x` being `w`, `e v` or `e`, and φ and `m` the design's. Estimators
//! are told them as a uniform sample of that size would have them, which errs as much: they are divided
//! by `n_s² (1/size − 1/n_s)`.

use crate::accumulator::Residual;
use crate::stats::LEAST_LEFT;
use crate::{Design, SampleStats, Weighed, Within};

/// One look at a sample, from which follows what a larger one would show.
pub(crate) struct Look<'a> {
    design: &'a dyn Design,
    reader: usize,
    shift: f64,
    /// All but what depends on the size.
    stats: SampleStats,
    /// `|x − m|²` of each token drawn, for `w`, `e v` and `e`.
    squares: Vec<[f64; 3]>,
    /// How much of its own square a term adds to the variance of a variance.
    shares: Vec<f64>,
    /// The stratum of each, and how many tokens each stratum has drawn.
    strata: Option<(Vec<usize>, Vec<f64>)>,
    /// `1 / rank`, and how much of it is due to the heaviest terms.
    inverse_rank: f64,
}

/// The variances of a total at a size, and the squared relative error of its estimate.
struct Variance {
    total: f64,
    doubt: f64,
}

impl<'a> Look<'a> {
    /// Looks at a sample of `size` whose tokens were drawn with probabilities `p`. O(drawn).
    pub(crate) fn new(
        design: &'a dyn Design,
        reader: usize,
        size: usize,
        p: &[f64],
        sample: &Weighed,
        residual: &Residual,
    ) -> Self {
        let squares: Vec<[f64; 3]> = (0..sample.e.len()).map(|i| squares_of(sample, i)).collect();
        let factors = design.factors(size);
        let pairs = match &sample.within {
            None => alignment_of_tokens(sample, &factors, &squares),
            Some(within) => alignment_of_differences(sample, &within.of, &factors),
        };
        let terms = factors.iter().zip(&squares).map(|(factor, [w, ..])| factor * w);
        let inverse_rank = pairs.map_or(1.0, |pairs| pairs.min(1.0) + own_share(terms));
        let stats = stats(size, sample, variance_n(&factors, &squares), residual);
        let share = |p: &f64| if sample.within.is_some() { 1.0 } else { 1.0 - p };
        let strata = sample.within.as_ref().map(|within| {
            let drawn = Within::drawn(&within.of).into_iter().map(|drawn| drawn as f64);
            (within.of.clone(), drawn.collect())
        });
        let (shift, shares) = (sample.shift, p.iter().map(share).collect());
        Self { design, reader, shift, stats, squares, shares, strata, inverse_rank }
    }

    /// What a sample of `size` says, at least that of the one looked at and less than the residual.
    pub(crate) fn at(&self, size: usize) -> SampleStats {
        let factors = self.design.factors(size);
        let [w, ev, e] = self.variances(&factors);
        let (b, n_s) = (size as f64, self.stats.n_s as f64);
        let alike = n_s * n_s * (1.0 / b - 1.0 / n_s);
        SampleStats {
            b: size,
            var_e: e.total / alike,
            trace_ev: ev.total / alike,
            trace_w: w.total / alike,
            // The doubt is added when variances are raised.
            nu: (1.0 / (self.inverse_rank - w.doubt).max(1.0 / n_s)).max(1.0),
            kurtosis_e: 1.0 + b * e.doubt,
            kurtosis_w: 1.0 + b * w.doubt,
            unseen: self.design.unseen(self.reader, size, self.shift),
            ..self.stats
        }
    }

    fn variances(&self, factors: &[f64]) -> [Variance; 3] {
        let (mut totals, mut fourths) = ([0.0; 3], [0.0; 3]);
        for ((factor, squares), share) in factors.iter().zip(&self.squares).zip(&self.shares) {
            for which in 0..3 {
                let term = factor * squares[which];
                totals[which] += term;
                fourths[which] += term * term * share;
            }
        }
        if let Some((of, drawn)) = &self.strata {
            let mut sums = vec![[0.0; 3]; drawn.len()];
            for ((&stratum, factor), squares) in of.iter().zip(factors).zip(&self.squares) {
                (0..3).for_each(|which| sums[stratum][which] += factor * squares[which]);
            }
            for (sums, n) in sums.iter().zip(drawn) {
                (0..3).for_each(|which| fourths[which] -= sums[which].powi(2) / n.max(1.0));
            }
        }
        [0, 1, 2].map(|which| {
            let (total, fourths) = (totals[which], fourths[which].max(0.0));
            Variance { total, doubt: if total > 0.0 { fourths / (total * total) } else { 0.0 } }
        })
    }
}

/// `|x − m|²` of a token, for `w`, `e v` and `e`, by products of its value.
fn squares_of(sample: &Weighed, i: usize) -> [f64; 3] {
    let Weighed { e, norms, by_out, out_squared, within, .. } = sample;
    let (w, e, by_out) = (sample.square(i), e[i], by_out[i]);
    let ev = (e * norms[i]).powi(2);
    let Some(within) = within else { return [w.max(0.0), ev, e * e] };
    let (mean, by_mean) = (within.means[within.of[i]], within.by_mean[i]);
    let along = e * (by_mean - mean.e * by_out - mean.by_out + mean.e * out_squared);
    let mean_w = mean.squared - mean.e * (2.0 * mean.by_out - mean.e * out_squared);
    [
        (w - 2.0 * along + mean_w).max(0.0),
        (ev - 2.0 * e * by_mean + mean.squared).max(0.0),
        (e - mean.e).powi(2),
    ]
}

/// All statistics of a sample of `size` that do not depend on a larger one; variances are missing.
fn stats(size: usize, sample: &Weighed, variance_n: f64, residual: &Residual) -> SampleStats {
    let Residual { n_s, visible, query_heads, max_norm_v, .. } = *residual;
    let norm_squared = sample.out_squared * sample.d * sample.d;
    SampleStats {
        b: size,
        n_s,
        visible,
        query_heads,
        value_dim: sample.value_dim,
        d: sample.d,
        d_certain: sample.d_certain,
        norm_n: norm_squared.sqrt(),
        norm_n_debiased: (norm_squared - variance_n).max(LEAST_LEFT * norm_squared).sqrt(),
        drift: sample.drift,
        var_e: f64::NAN,
        trace_ev: f64::NAN,
        trace_w: f64::NAN,
        nu: f64::NAN,
        kurtosis_e: f64::NAN,
        kurtosis_w: f64::NAN,
        sum_e_norm_v: sample.sum_e_norm_v,
        max_norm_v,
        bound: None,
        unseen: None,
    }
}

/// The variance of `N^`.
fn variance_n(factors: &[f64], squares: &[[f64; 3]]) -> f64 {
    factors.iter().zip(squares).map(|(factor, [_, ev, _])| factor * ev).sum()
}

/// `Tr(S²) / Tr(S)²` of the covariance `S` of a total of `w`, from pairs of different tokens, each weighed by what
/// it adds to the trace (docs/guarantees.md, eq. 7'). `None` of fewer than four tokens.
fn alignment_of_tokens(sample: &Weighed, factors: &[f64], squares: &[[f64; 3]]) -> Option<f64> {
    let (mut parallel, mut all) = (0.0, 0.0);
    for four in 0..sample.fours.len() {
        let products = sample.products(four);
        for (product, (i, j)) in products.into_iter().zip(Weighed::PAIRS) {
            let (i, j) = (Weighed::FOUR * four + i, Weighed::FOUR * four + j);
            let factor = factors[i] * factors[j];
            parallel += factor * product * product;
            all += factor * squares[i][0] * squares[j][0];
        }
    }
    (all > 0.0).then(|| parallel / all)
}

/// The same from pairs of differences of two tokens of a stratum, on which its mean has no influence (eq. 7'').
/// `None` if no four tokens side by side are two and two of a stratum.
fn alignment_of_differences(sample: &Weighed, strata: &[usize], factors: &[f64]) -> Option<f64> {
    let (mut parallel, mut all) = (0.0, 0.0);
    for (four, strata) in strata.chunks_exact(Weighed::FOUR).enumerate() {
        let first = Weighed::FOUR * four;
        let square = |i: usize| sample.square(first + i);
        let products = sample.products(four);
        for ([a, b], [c, d]) in Weighed::PAIRINGS {
            if strata[a] != strata[b] || strata[c] != strata[d] {
                continue;
            }
            let of = |i: usize, j: usize| products[Weighed::pair(i, j)];
            let product = of(a, c) - of(a, d) - of(b, c) + of(b, d);
            let squares =
                (square(a) + square(b) - 2.0 * of(a, b)) * (square(c) + square(d) - 2.0 * of(c, d));
            let factor = factors[first + a] * factors[first + c];
            parallel += factor * product * product;
            all += factor * squares;
        }
    }
    (all > 0.0).then(|| parallel / all)
}

/// What terms add to `1 / rank` that are parallel to themselves: 1 over the number of terms that would weigh as much
/// if all weighed the same.
fn own_share(terms: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = terms.fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if sum > 0.0 { squares / (sum * sum) } else { 0.0 }
}

#[cfg(test)]
mod tests;
