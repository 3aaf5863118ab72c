//! Variances of the estimates from a sample of any design.
//!
//! Let `w = e (v − o^)`, and let `W^` be the estimated total of `w`; the output's error is
//! `W^ / D^`. The variances of `W^`, `N^` and `D^` at a sample size are `Σ φ |x − m|²` over the
//! sample, where `x` is `w`, `e v` or `e`, and the design defines φ and `m`
//! (docs/guarantees.md, eq. 18). Estimators receive these variances divided by
//! `n_s² (1/size − 1/n_s)`: the per-token variances of a uniform sample of the same size and error.

use std::cell::RefCell;
use std::rc::Rc;

use crate::{
    plugin::Design,
    sample::{
        Moments, Residual, SampleStats, SampleTotals, Stratification, TokenWeights, Variance,
        WeighedSample, max_or_nan,
    },
};

/// State of a design at one check, which all query heads share.
pub(crate) struct DesignSnapshot<'a> {
    design: &'a dyn Design,
    size: usize,
    probabilities: Vec<f64>,
    strata: Option<Stratification>,
    /// φ of each token at this size.
    factors: Vec<f64>,
    /// φ of each token at the larger sizes for which it has been computed.
    later_factors: RefCell<Vec<(usize, Rc<Vec<f64>>)>>,
}

impl<'a> DesignSnapshot<'a> {
    /// Records the state of a design at a sample size.
    pub(crate) fn new(design: &'a dyn Design, size: usize) -> Self {
        let (probabilities, strata) = (design.probabilities(), design.strata());
        let (factors, later_factors) = (design.factors(size), RefCell::default());
        Self { design, size, probabilities, strata, factors, later_factors }
    }

    /// Weights of the tokens at the current size.
    pub(crate) fn weights(&self) -> TokenWeights<'_> {
        TokenWeights {
            p: &self.probabilities,
            factors: &self.factors,
            strata: self.strata.as_ref(),
        }
    }

    /// Variances of the estimates of a sample at a size that is not smaller than the current one.
    fn variances(&self, sample: &WeighedSample, size: usize) -> [Variance; 3] {
        if size == self.size {
            return sample.variances;
        }
        let factors = &self.factors_at(size);
        sample.squares.variances(&TokenWeights { factors, ..self.weights() })
    }

    /// Returns φ of each token at a larger size. It is the same for all query heads.
    fn factors_at(&self, size: usize) -> Rc<Vec<f64>> {
        let mut computed = self.later_factors.borrow_mut();
        if let Some((_, factors)) = computed.iter().find(|entry| entry.0 == size) {
            return factors.clone();
        }
        let factors = Rc::new(self.design.factors(size));
        computed.push((size, factors.clone()));
        factors
    }
}

/// Statistics of a sample for one query head, and predictions of the statistics of larger samples.
pub(crate) struct SampleCheck<'a> {
    snapshot: &'a DesignSnapshot<'a>,
    /// Index of the query head among those that read the list.
    reader: usize,
    /// Statistics that do not depend on the predicted size.
    stats: SampleStats,
    sample: WeighedSample,
}

impl<'a> SampleCheck<'a> {
    /// Creates a check of the drawn tokens for one query head.
    pub(crate) fn new(
        snapshot: &'a DesignSnapshot<'a>,
        reader: usize,
        sample: WeighedSample,
        residual: &Residual,
    ) -> Self {
        let stats = stats(snapshot.size, &sample.totals, residual);
        Self { snapshot, reader, stats, sample }
    }

    /// Predicts the statistics of a sample of `size` tokens, at least the current size and fewer
    /// than the residual.
    pub(crate) fn predict(&self, size: usize) -> SampleStats {
        let [w, ev, e] = self.snapshot.variances(&self.sample, size);
        let [error_w, error_e] = [w, e].map(|variance| variance.relative_error_squared());
        let (b, n_s) = (size as f64, self.stats.n_s as f64);
        let drawn = self.stats.drawn as f64;
        // The variance of a total from a uniform sample whose values have variance 1.
        let uniform = n_s * n_s * (1.0 / b - 1.0 / n_s);
        SampleStats {
            b: size,
            var_e: e.sum / uniform,
            trace_ev: ev.sum / uniform,
            trace_w: w.sum / uniform,
            // The squared error is subtracted here, because
            // `SampleStats::with_raised_variances` adds it again.
            // The last `max` may drop a NaN, because a rank of 1 is safe.
            nu: (1.0 / max_or_nan(self.sample.inverse_rank - error_w, 1.0 / n_s)).max(1.0),
            kurtosis_e: 1.0 + drawn * error_e,
            kurtosis_w: 1.0 + drawn * error_w,
            unseen: self.snapshot.design.unseen(self.reader, size, self.sample.totals.shift),
            ..self.stats
        }
    }
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
