//! Budgets from estimated variances: what `clt` and `sub-gaussian` have in common.

use vattention_core::{
    Assumptions, Budget, ClosedForm, Formula, Kind, Numerator, SampleStats, Split, Target,
};

use crate::formula::{fpc, parts, sdpa, whole_tokens};
use crate::goal::Goal;
use crate::{Combine, Correction, Mode, Terms};

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

/// The logarithms of the ratios in which a table divides delta. Where the best ratio is beyond them, or
/// between two, `√b` is some 1e-5 larger at the most.
const RATIOS: std::ops::RangeInclusive<i32> = -384..=384;
const STEP: f64 = 1.0 / 32.0;

/// What machines are told of these budgets: a table of the ways to divide delta instead of a search.
/// There is none for a floor, or for other modes than the default.
pub(crate) fn closed_form(
    terms: &Terms,
    query_heads: usize,
    quantiles: &Quantiles<'_>,
) -> Option<ClosedForm> {
    if terms.mode != Mode::Default || terms.floor.is_some() {
        return None;
    }
    let (epsilon, delta) = (terms.epsilon.get(), terms.delta.get());
    let delta = terms.scope.share_of(delta, query_heads);
    let numerator = match terms.combine {
        Combine::Exact => Numerator::Debiased,
        Combine::Paper => Numerator::AsEstimated,
    };
    let splits = splits(terms, epsilon, delta, quantiles);
    let formula =
        Formula { numerator, epsilon, splits, finite: terms.correction == Correction::Finite };
    Some(ClosedForm::Formula { formula, kind: Kind::Asymptotic, assumes: Assumptions::ALL })
}

fn splits(terms: &Terms, epsilon: f64, delta: f64, quantiles: &Quantiles<'_>) -> Vec<Split> {
    let combination = terms.combine.combination();
    // What one standard deviation of each costs: `root` is linear in both.
    let (num, den) = match terms.target {
        Target::Denominator => (0.0, 1.0),
        Target::Numerator => (1.0, 0.0),
        Target::Sdpa => (combination.root(epsilon, 1.0, 0.0), combination.root(epsilon, 0.0, 1.0)),
    };
    let split = |delta_num: f64, delta_den: f64| Split {
        cap: if num > 0.0 { ((quantiles.vector)(delta_num) * num).powi(2) } else { 0.0 },
        // Nothing is known of the spectrum: the cap is what counts.
        kappa: f64::INFINITY,
        z: if den > 0.0 { (quantiles.scalar)(delta_den) * den / epsilon } else { 0.0 },
    };
    match terms.target {
        Target::Denominator | Target::Numerator => vec![split(delta, delta)],
        Target::Sdpa => RATIOS
            .map(|i| parts(delta, f64::from(i) * STEP))
            .map(|(num, den)| split(num, den))
            .collect(),
    }
}
