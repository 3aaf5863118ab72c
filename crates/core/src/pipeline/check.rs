//! Variances of the estimates from a sample of any design.
//!
//! Let `w = e (v − o^)`, and let `W^` be the estimated total of `w`; the output's error is
//! `W^ / D^`. The variances of `W^`, `N^` and `D^` at a sample size are `Σ φ |x − m|²` over the
//! sample, where `x` is `w`, `e v` or `e`, and the design defines φ and `m`
//! (docs/guarantees.md, eq. 18). Estimators receive these variances divided by
//! `n_s² (1/size − 1/n_s)`: the per-token variances of a uniform sample of the same size and error.

use std::cell::RefCell;
use std::rc::Rc;

use multiversion::multiversion;

use crate::{
    plugin::Design,
    sample::{
        Moments, Residual, SampleStats, SampleTotals, Stratification, TokenSquares, TokenWeights,
        WeighedSample, max_or_nan, sums::sum_terms,
    },
    step::Scratch,
};

/// State of a design at one check, which all query heads share.
pub(crate) struct DesignSnapshot {
    size: usize,
    probabilities: Vec<f64>,
    strata: Option<Stratification>,
    /// Weight of each token's squared term in the variance of an estimated variance: `1 − π` for
    /// independent draws, 1 within strata.
    weights: Scratch<f64>,
    /// Number of tokens drawn from each stratum.
    drawn_by_stratum: Vec<f64>,
    /// φ of each token at this size, and at the other sizes for which it has been computed.
    factors: RefCell<Vec<(usize, Rc<Vec<f64>>)>>,
}

impl DesignSnapshot {
    /// Records the state of a design at a sample size.
    pub(crate) fn new(design: &dyn Design, size: usize) -> Self {
        let (probabilities, strata) = (design.probabilities(), design.strata());
        let mut weights = Scratch::new(probabilities.len());
        for (weight, p) in weights.iter_mut().zip(&probabilities) {
            *weight = if strata.is_some() { 1.0 } else { 1.0 - p };
        }
        let drawn = strata.as_ref().map_or_else(Vec::new, Stratification::drawn);
        let drawn_by_stratum = drawn.into_iter().map(|drawn| drawn as f64).collect();
        let factors = RefCell::default();
        Self { size, probabilities, strata, weights, drawn_by_stratum, factors }
    }

    /// Calls `read` with the weights of the tokens at the current size.
    pub(crate) fn weigh<T>(
        &self,
        design: &dyn Design,
        read: impl FnOnce(&TokenWeights<'_>) -> T,
    ) -> T {
        let factors = &self.factors(design, self.size);
        read(&TokenWeights { p: &self.probabilities, factors, strata: self.strata.as_ref() })
    }

    /// Returns φ of each token at a size. It is the same for all query heads.
    fn factors(&self, design: &dyn Design, size: usize) -> Rc<Vec<f64>> {
        let mut computed = self.factors.borrow_mut();
        if let Some((_, factors)) = computed.iter().find(|entry| entry.0 == size) {
            return factors.clone();
        }
        let factors = Rc::new(design.factors(size));
        computed.push((size, factors.clone()));
        factors
    }
}

/// Statistics of a sample for one query head, and predictions of the statistics of larger samples.
pub(crate) struct SampleCheck<'a> {
    design: &'a dyn Design,
    snapshot: &'a DesignSnapshot,
    /// Index of the query head among those that read the list.
    reader: usize,
    /// Statistics that do not depend on the predicted size.
    stats: SampleStats,
    sample: WeighedSample,
}

/// Predicted variance of a total.
struct Variance {
    variance: f64,
    /// Squared relative standard error of this prediction.
    relative_error_squared: f64,
}

impl<'a> SampleCheck<'a> {
    /// Creates a check of the drawn tokens for one query head.
    pub(crate) fn new(
        design: &'a dyn Design,
        snapshot: &'a DesignSnapshot,
        reader: usize,
        sample: WeighedSample,
        residual: &Residual,
    ) -> Self {
        let stats = stats(snapshot.size, &sample.totals, residual);
        Self { design, snapshot, reader, stats, sample }
    }

    /// Predicts the statistics of a sample of `size` tokens, at least the current size and fewer
    /// than the residual.
    pub(crate) fn predict(&self, size: usize) -> SampleStats {
        let [w, ev, e] = self.variances(&self.snapshot.factors(self.design, size));
        let (b, n_s) = (size as f64, self.stats.n_s as f64);
        let drawn = self.stats.drawn as f64;
        // The variance of a total from a uniform sample whose values have variance 1.
        let uniform = n_s * n_s * (1.0 / b - 1.0 / n_s);
        SampleStats {
            b: size,
            var_e: e.variance / uniform,
            trace_ev: ev.variance / uniform,
            trace_w: w.variance / uniform,
            // The squared error is subtracted here, because
            // `SampleStats::with_raised_variances` adds it again.
            // The last `max` may drop a NaN, because a rank of 1 is safe.
            nu: (1.0 / max_or_nan(self.sample.inverse_rank - w.relative_error_squared, 1.0 / n_s))
                .max(1.0),
            kurtosis_e: 1.0 + drawn * e.relative_error_squared,
            kurtosis_w: 1.0 + drawn * w.relative_error_squared,
            unseen: self.design.unseen(self.reader, size, self.sample.totals.shift),
            ..self.stats
        }
    }

    /// Variances of the estimated totals of `w`, `e v` and `e`, from φ of each token.
    fn variances(&self, factors: &[f64]) -> [Variance; 3] {
        let TokenSquares { w, ev, e } = &self.sample.squares;
        let DesignSnapshot { weights, strata, drawn_by_stratum: drawn, .. } = self.snapshot;
        let mut sums = sum_squares_and_fourths(factors, weights, &self.sample.squares);
        if let Some(Stratification { strata, .. }) = strata {
            for ([_, fourths], squares) in sums.iter_mut().zip([w, ev, e]) {
                let mut sums = vec![0.0; drawn.len()];
                for ((&stratum, factor), square) in strata.iter().zip(factors).zip(&**squares) {
                    sums[stratum] += factor * square;
                }
                let means = sums.iter().zip(drawn).map(|(sum, n)| sum * sum / n.max(1.0));
                *fourths -= means.sum::<f64>();
            }
        }
        sums.map(|[variance, fourths]| {
            let fourths = max_or_nan(fourths, 0.0);
            let relative_error_squared =
                if variance == 0.0 { 0.0 } else { fourths / (variance * variance) };
            Variance { variance, relative_error_squared }
        })
    }
}

/// `Σ φ |x − m|²`, and the sum of its squared terms, each multiplied by its weight, for `w`, `e v`
/// and `e`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn sum_squares_and_fourths(
    factors: &[f64],
    weights: &[f64],
    squares: &TokenSquares,
) -> [[f64; 2]; 3] {
    let columns = [factors, weights, &squares.w, &squares.ev, &squares.e];
    let [w, w_fourths, ev, ev_fourths, e, e_fourths] =
        sum_terms(columns, |[factor, weight, w, ev, e]| {
            let [w, ev, e] = [factor * w, factor * ev, factor * e];
            [w, w * w * weight, ev, ev * ev * weight, e, e * e * weight]
        });
    [[w, w_fourths], [ev, ev_fourths], [e, e_fourths]]
}

/// Statistics of a sample of `size` tokens apart from its variances, which are not set.
fn stats(size: usize, totals: &SampleTotals, residual: &Residual) -> SampleStats {
    let Residual { n_s, visible, query_heads, max_norm_v, .. } = *residual;
    let moments = Moments {
        value_dim: totals.value_dim,
        d: totals.d,
        d_certain: totals.d_certain,
        norm_n_squared: totals.out_squared * totals.d * totals.d,
        drift: totals.drift,
        ..Moments::default()
    };
    let residual = Residual { n_s, visible, query_heads, max_norm_v, bound: None };
    SampleStats::from_moments(size, &moments, &residual)
}

#[cfg(test)]
mod tests;
