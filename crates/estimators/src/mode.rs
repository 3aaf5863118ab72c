//! How sure a promise is to be of what the sample does not show.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    ALLOWANCE, Assumption, Assumptions, Budget, Demand, Kind, Needs, Radius, SampleStats,
};

use crate::conversion::Conversion;
use crate::goal::Goal;
use crate::{rigorous, strict, unseen};

/// What a budget may take for granted (docs/guarantees.md, sections 4 and 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// That sums are near to normal, that moments are as estimated, but for an allowance, and that the
    /// sample has seen the residual's tail, unless the sampler knows what it may have missed.
    #[default]
    Default,
    /// Where the selectors prove a bound, or the sampler knows, the sample is so large that what it
    /// missed and its error come to epsilon together, and no tail need have been seen.
    Strict,
    /// Nothing: a theorem for every finite sample, from weights that are proved to be bounded.
    Rigorous,
}

/// Corrections of what a sample estimates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corrections {
    /// Standard errors by which variances are raised.
    pub(crate) allowance: f64,
    /// Conversion of errors relative to the estimate.
    pub(crate) conversion: Conversion,
}

impl Corrections {
    /// Estimates are taken for the truth.
    pub(crate) const NONE: Self = Self { allowance: 0.0, conversion: Conversion::None };
    /// Corrections of results of the central limit theorem.
    pub(crate) const NORMAL: Self = Self { allowance: ALLOWANCE, conversion: Conversion::Normal };
}

/// The part of delta for missed tokens that would shift the target further than was counted.
const UNSEEN_SHARE: f64 = 0.1;

impl Mode {
    /// The error bar of a sample, given the radius by the central limit theorem, which is relative to
    /// the estimate.
    pub(crate) fn radius(
        self,
        demand: &Demand,
        stats: &SampleStats,
        corrections: Corrections,
        asymptotic: impl Fn(&SampleStats, &Goal) -> f64,
    ) -> Radius {
        let goal = Goal::new(demand, stats);
        if self == Self::Rigorous {
            return rigorous::radius(&goal, stats);
        }
        let stats = &stats.raised(corrections.allowance);
        let missed = UNSEEN_SHARE * goal.delta;
        let others = Goal { delta: goal.delta - missed, ..goal };
        let of_sums = |goal: &Goal| asymptotic(stats, goal);
        let bar = |goal: &Goal, radius: f64| corrections.conversion.bar(radius, goal.delta);
        let tail_counted =
            Assumptions::of(Assumption::Normal) | Assumptions::of(Assumption::Moments);
        let (relative, assumes) = match (self, &stats.unseen, stats.bound) {
            (_, Some(unseen), _) => {
                let shift = unseen::shift(&goal, stats, unseen, missed);
                let bar = bar(&others, unseen::radius(self, of_sums(&others), shift));
                (bar, if unseen.proved { tail_counted } else { Assumptions::ALL })
            }
            (Self::Strict, None, Some(bound)) => {
                let shift = strict::shift(&goal, stats, bound, missed);
                (bar(&others, of_sums(&others) + shift), tail_counted)
            }
            _ => (bar(&goal, of_sums(&goal)), Assumptions::ALL),
        };
        Radius::new(relative, Kind::Asymptotic, assumes)
    }

    /// The budget, if it is known by a formula: that of a uniform sample, of an estimator that asks for
    /// `asymptotic` tokens by the central limit theorem.
    pub(crate) fn budget(
        self,
        demand: &Demand,
        stats: &SampleStats,
        corrections: Corrections,
        asymptotic: impl Fn(&SampleStats, &Goal) -> usize,
    ) -> Option<Budget> {
        let goal = Goal::new(demand, stats);
        let needs_search = stats.unseen.is_some() || stats.bound.is_some();
        match self {
            Self::Strict if needs_search => None,
            Self::Default if stats.unseen.is_some() => None,
            Self::Default | Self::Strict => {
                let stats = &stats.raised(corrections.allowance);
                let epsilon = corrections.conversion.invert(goal.epsilon, goal.delta);
                Some(Budget {
                    tokens: asymptotic(stats, &Goal { epsilon, ..goal }),
                    kind: Kind::Asymptotic,
                    assumes: Assumptions::ALL,
                })
            }
            Self::Rigorous => Some(rigorous::budget(&goal, stats)),
        }
    }

    /// What it must be told.
    pub(crate) fn needs(self) -> Needs {
        if self == Self::Rigorous { Needs::Proof } else { Needs::Variances }
    }
}
