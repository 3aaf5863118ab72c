//! Radii and budgets from estimated variances: what `clt` and `sub-gaussian` have in common.

use vattention_core::{
    SampleStats, Target,
    plugin::{Budget, Radius},
};

use crate::formula::{fpc, sdpa, sdpa_error, unbounded, whole_tokens};
use crate::goal::Goal;
use crate::mode::Corrections;
use crate::{Combine, Correction, Mode, Terms};

/// What holds with probability `1 − delta`, at one draw.
pub(crate) struct Quantiles<'a> {
    /// For a number: how many of its standard deviations.
    pub(crate) scalar: &'a dyn Fn(f64) -> f64,
    /// For a vector: how many roots of its covariance's trace.
    pub(crate) vector: &'a dyn Fn(f64) -> f64,
}

/// How far the target may be off.
pub(crate) fn radius(terms: &Terms, stats: &SampleStats, quantiles: &Quantiles<'_>) -> Radius {
    let asymptotic = |stats: &SampleStats, goal: &Goal| error(terms, stats, goal, quantiles);
    terms.mode.radius(&terms.demand(), stats, corrections_of(terms), asymptotic)
}

/// The budget that brings the target's error within epsilon, if there is a formula for it.
pub(crate) fn budget(
    terms: &Terms,
    stats: &SampleStats,
    quantiles: &Quantiles<'_>,
) -> Option<Budget> {
    let asymptotic = |stats: &SampleStats, goal: &Goal| tokens(terms, stats, goal, quantiles);
    terms.mode.budget(&terms.demand(), stats, corrections_of(terms), asymptotic)
}

/// The paper takes estimates for the truth.
fn corrections_of(terms: &Terms) -> Corrections {
    match (terms.combine, terms.mode) {
        (Combine::Paper, Mode::Default) => Corrections::NONE,
        _ => Corrections::NORMAL,
    }
}

/// At one draw out of infinitely many.
struct Radii<'a> {
    quantiles: &'a Quantiles<'a>,
    s_n: f64,
    s_d: f64,
}

impl<'a> Radii<'a> {
    fn new(stats: &SampleStats, goal: &Goal, quantiles: &'a Quantiles<'a>) -> Self {
        let n_s = stats.n_s as f64;
        Self {
            quantiles,
            s_n: n_s * stats.trace_ev.sqrt() / goal.norm_n(stats),
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

fn error(terms: &Terms, stats: &SampleStats, goal: &Goal, quantiles: &Quantiles<'_>) -> f64 {
    let radii = Radii::new(stats, goal, quantiles);
    let draws = match terms.correction {
        Correction::Finite => unbounded(stats.b as f64, stats.n_s),
        Correction::None => stats.b as f64,
    };
    let num = |delta: f64| radii.num(delta) / draws.sqrt();
    let den = |delta: f64| radii.den(delta) / draws.sqrt();
    match goal.target {
        Target::Denominator => den(goal.delta),
        Target::Numerator => num(goal.delta),
        Target::Sdpa => sdpa_error(terms.combine.combination(), goal.delta, num, den),
    }
}

fn tokens(terms: &Terms, stats: &SampleStats, goal: &Goal, quantiles: &Quantiles<'_>) -> usize {
    let &Goal { target, epsilon, delta, .. } = goal;
    let radii = Radii::new(stats, goal, quantiles);
    let (num, den) = (|delta: f64| radii.num(delta), |delta: f64| radii.den(delta));
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
