//! Radii from estimated variances, for `clt` and `sub-gaussian`.

use vattention_core::{SampleStats, Target, plugin::Radius};

use crate::formula::{sdpa_error, unbounded};
use crate::mode::Corrections;
use crate::{Combine, Correction, Mode, Terms, rigorous};

/// Quantiles of standardised errors, as functions of delta: an error exceeds its quantile with
/// probability delta at most.
pub(crate) struct ErrorQuantiles<'a> {
    /// Quantile of the error of a number, in standard deviations.
    pub(crate) scalar: &'a dyn Fn(f64) -> f64,
    /// Quantile of the length of a vector's error, in square roots of the covariance's trace.
    pub(crate) vector: &'a dyn Fn(f64) -> f64,
}

/// Error bar of a sample.
pub(crate) fn radius(terms: &Terms, stats: &SampleStats, quantiles: &ErrorQuantiles<'_>) -> Radius {
    let delta = terms.scope.row_delta(terms.delta.get(), stats.query_heads);
    if terms.mode == Mode::Rigorous {
        let checks = rigorous::count_checks(terms.size, terms.limit, stats.n_s);
        return rigorous::radius(terms.target, delta / checks as f64, stats);
    }
    let asymptotic = |stats: &SampleStats, delta: f64| error(terms, stats, delta, quantiles);
    terms.mode.radius(terms.target, delta, stats, corrections_of(terms), asymptotic)
}

/// Corrections of estimates; the paper takes estimates for the true values.
fn corrections_of(terms: &Terms) -> Corrections {
    match (terms.combine, terms.mode) {
        (Combine::Paper, Mode::Default) => Corrections::NONE,
        _ => Corrections::NORMAL,
    }
}

/// Radii of numerator and denominator at one draw from an infinite population.
struct Radii<'a> {
    quantiles: &'a ErrorQuantiles<'a>,
    s_n: f64,
    s_d: f64,
}

impl<'a> Radii<'a> {
    fn new(stats: &SampleStats, quantiles: &'a ErrorQuantiles<'a>) -> Self {
        let n_s = stats.n_s as f64;
        Self {
            quantiles,
            s_n: n_s * stats.trace_ev.sqrt() / stats.norm_n,
            s_d: n_s * stats.var_e.sqrt() / stats.d,
        }
    }

    fn num(&self, delta: f64) -> f64 {
        (self.quantiles.vector)(delta) * self.s_n
    }

    fn den(&self, delta: f64) -> f64 {
        (self.quantiles.scalar)(delta) * self.s_d
    }
}

/// Error of the target relative to its estimate.
fn error(terms: &Terms, stats: &SampleStats, delta: f64, quantiles: &ErrorQuantiles<'_>) -> f64 {
    let radii = Radii::new(stats, quantiles);
    let draws = match terms.correction {
        Correction::Finite => unbounded(stats.b as f64, stats.n_s),
        Correction::None => stats.b as f64,
    };
    let num = |delta: f64| radii.num(delta) / draws.sqrt();
    let den = |delta: f64| radii.den(delta) / draws.sqrt();
    match terms.target {
        Target::Denominator => den(delta),
        Target::Numerator => num(delta),
        Target::Sdpa => sdpa_error(terms.combine, delta, num, den),
    }
}
