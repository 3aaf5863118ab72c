//! How sure a promise is to be of what the sample does not show.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{Assumptions, Budget, Demand, Kind, Needs, Radius, SampleStats};

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

impl Mode {
    /// How far a sample may be off, by an estimator that knows that of the central limit theorem, given
    /// statistics whose variances are raised by `allowance` of their standard errors.
    pub(crate) fn radius(
        self,
        demand: &Demand,
        stats: &SampleStats,
        allowance: f64,
        asymptotic: impl Fn(&SampleStats, &Goal) -> f64,
    ) -> Radius {
        let goal = Goal::new(demand, stats);
        match (self, &stats.unseen) {
            (Self::Rigorous, _) => rigorous::radius(&goal, stats),
            (_, Some(unseen)) => {
                unseen::radius(self, &goal, &stats.raised(allowance), unseen, asymptotic)
            }
            (Self::Default, None) => {
                let relative = asymptotic(&stats.raised(allowance), &goal);
                Radius::new(relative, Kind::Asymptotic, Assumptions::ALL)
            }
            (Self::Strict, None) => strict::radius(&goal, &stats.raised(allowance), asymptotic),
        }
    }

    /// The budget, if it is known by a formula: that of a uniform sample, of an estimator that asks for
    /// `asymptotic` tokens by the central limit theorem.
    pub(crate) fn budget(
        self,
        demand: &Demand,
        stats: &SampleStats,
        allowance: f64,
        asymptotic: impl Fn(&SampleStats, &Goal) -> usize,
    ) -> Option<Budget> {
        let goal = Goal::new(demand, stats);
        let needs_search = stats.unseen.is_some() || stats.bound.is_some();
        match self {
            Self::Strict if needs_search => None,
            Self::Default if stats.unseen.is_some() => None,
            Self::Default | Self::Strict => Some(Budget {
                tokens: asymptotic(&stats.raised(allowance), &goal),
                kind: Kind::Asymptotic,
                assumes: Assumptions::ALL,
            }),
            Self::Rigorous => Some(rigorous::budget(&goal, stats)),
        }
    }

    /// What it must be told.
    pub(crate) fn needs(self) -> Needs {
        if self == Self::Rigorous { Needs::Proof } else { Needs::Variances }
    }
}
