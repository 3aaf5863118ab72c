//! Radii from estimated variances: what `clt` and `sub-gaussian` have in common.

use vattention_core::{
    Assumptions, ClosedForm, Denominator, Formula, Kind, Numerator, Population, Radius,
    SampleStats, Target,
};

use crate::formula::{sdpa_error, unbounded};
use crate::mode::Corrections;
use crate::splits::{Quantiles, splits};
use crate::{Combine, Correction, Mode, Terms, rigorous};

/// Error bar of a sample.
pub(crate) fn radius(terms: &Terms, stats: &SampleStats, quantiles: &Quantiles<'_>) -> Radius {
    let delta = terms.scope.share_of(terms.delta.get(), stats.query_heads);
    if terms.mode == Mode::Rigorous {
        let checks = rigorous::checks(terms.size, terms.limit, stats.n_s);
        return rigorous::radius(terms.target, delta / checks as f64, stats);
    }
    let asymptotic = |stats: &SampleStats, delta: f64| error(terms, stats, delta, quantiles);
    terms.mode.radius(terms.target, delta, stats, corrections_of(terms), asymptotic)
}

/// Corrections of the terms; the paper takes estimates for the truth.
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
    fn new(stats: &SampleStats, quantiles: &'a Quantiles<'a>) -> Self {
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

fn error(terms: &Terms, stats: &SampleStats, delta: f64, quantiles: &Quantiles<'_>) -> f64 {
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
        Target::Sdpa => sdpa_error(terms.combine.combination(), delta, num, den),
    }
}

/// The budgets for devices: a table of the ways to divide delta instead of a search.
/// There is none for other modes than the default.
pub(crate) fn closed_form(
    terms: &Terms,
    query_heads: usize,
    quantiles: &Quantiles<'_>,
) -> Option<ClosedForm> {
    if let Some(size) = terms.size {
        return Some(ClosedForm::Size(size));
    }
    let epsilon = terms.epsilon.filter(|_| terms.limit.is_none())?.get();
    if terms.mode != Mode::Default {
        return None;
    }
    let delta = terms.delta.get();
    let delta = terms.scope.share_of(delta, query_heads);
    let Corrections { allowance, conversion } = corrections_of(terms);
    let epsilon = conversion.invert(epsilon, delta);
    let formula = Formula {
        numerator: Numerator::Estimated,
        denominator: Denominator::Estimated,
        epsilon,
        splits: splits(terms.target, terms.combine, (epsilon, delta), quantiles),
        population: match terms.correction {
            Correction::Finite => Population::Finite,
            Correction::None => Population::Infinite,
        },
        allowance,
    };
    Some(ClosedForm::Formula { formula, kind: Kind::Asymptotic, assumes: Assumptions::ALL })
}
