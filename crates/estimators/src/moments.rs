//! Budgets from estimated variances: what `clt` and `sub-gaussian` have in common.

use vattention_core::{Budget, SampleStats, Target};

use crate::formula::{fpc, sdpa, whole_tokens};
use crate::goal::Goal;
use crate::{Combine, Correction, Terms};

/// How many standard deviations hold with probability `1 − delta`.
pub(crate) struct Quantiles<'a> {
    /// For a number.
    pub(crate) scalar: &'a dyn Fn(f64) -> f64,
    /// For a vector, of the root of its covariance's trace.
    pub(crate) vector: &'a dyn Fn(f64) -> f64,
}

/// The budget that brings the target's error within epsilon.
pub(crate) fn budget(terms: &Terms, stats: &SampleStats, quantiles: &Quantiles<'_>) -> Budget {
    let asymptotic = |stats: &SampleStats, goal: &Goal| tokens(terms, stats, goal, quantiles);
    terms.mode.budget(&terms.promise(), stats, asymptotic)
}

fn tokens(terms: &Terms, stats: &SampleStats, goal: &Goal, quantiles: &Quantiles<'_>) -> usize {
    let &Goal { target, epsilon, delta, .. } = goal;
    let n_s = stats.n_s as f64;
    let norm_n = if terms.combine == Combine::Paper { stats.norm_n } else { stats.norm_n_debiased };
    let s_d = n_s * stats.var_e.sqrt() / stats.d;
    let s_n = n_s * stats.trace_ev.sqrt() / goal.norm_n(norm_n, stats);
    let den = |delta: f64| (quantiles.scalar)(delta) * s_d;
    let num = |delta: f64| (quantiles.vector)(delta) * s_n;
    let infinite = match target {
        Target::Denominator => (den(delta) / epsilon).powi(2),
        Target::Numerator => (num(delta) / epsilon).powi(2),
        Target::Sdpa => sdpa(terms.combine.combination(), epsilon, delta, num, den).b,
    };
    let b = match terms.correction {
        Correction::Finite => fpc(infinite, stats.n_s),
        Correction::None => infinite,
    };
    whole_tokens(b, stats.n_s)
}
