//! Budgets from estimated variances: what `clt` and `sub-gaussian` have in common.

use vattention_core::{
    Assumptions, Budget, ClosedForm, Denominator, Formula, Kind, Numerator, Population,
    SampleStats, Target,
};

use crate::formula::{ALLOWANCE, fpc, sdpa, whole_tokens};
use crate::goal::Goal;
use crate::splits::{Quantiles, splits};
use crate::{Combine, Correction, Mode, Terms};

/// The budget that brings the target's error within epsilon.
pub(crate) fn budget(terms: &Terms, stats: &SampleStats, quantiles: &Quantiles<'_>) -> Budget {
    let asymptotic = |stats: &SampleStats, goal: &Goal| tokens(terms, stats, goal, quantiles);
    terms.mode.budget(&terms.promise(), stats, allowance_of(terms), asymptotic)
}

/// The paper takes variances as they are estimated.
fn allowance_of(terms: &Terms) -> f64 {
    match (terms.combine, terms.mode) {
        (Combine::Paper, Mode::Default) => 0.0,
        _ => ALLOWANCE,
    }
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
    let formula = Formula {
        numerator,
        denominator: Denominator::Estimated,
        epsilon,
        splits: splits(terms.target, terms.combine, (epsilon, delta), quantiles),
        population: match terms.correction {
            Correction::Finite => Population::Finite,
            Correction::None => Population::Infinite,
        },
        allowance: allowance_of(terms),
    };
    Some(ClosedForm::Formula { formula, kind: Kind::Asymptotic, assumes: Assumptions::ALL })
}
