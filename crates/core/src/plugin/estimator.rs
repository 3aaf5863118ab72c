//! The estimator plug-in: it bounds a sample's error, and says how many tokens a promise needs.

use std::any::Any;
use std::fmt::Debug;

use dyn_clone::DynClone;

use crate::{
    plugin::TunableDemand,
    promise::{Assumptions, Demand, Kind, Promise},
    sample::SampleStats,
};

/// Decides how many tokens of the residual must be in the sample.
#[typetag::serde(tag = "type")]
pub trait BudgetEstimator: Any + Debug + DynClone + Send + Sync {
    /// The error bar of a sample; a pure function.
    ///
    /// It falls as samples of the same moments grow ([`SampleStats::at`]).
    fn radius(&self, stats: &SampleStats) -> Radius;

    /// The number of tokens that the promise needs, estimated from a uniform sample: the least size
    /// whose [radius](Self::radius) is at most epsilon. By default it is searched for: O(log n_s)
    /// radii. A pure function.
    ///
    /// The sampler clamps it to the residual.
    fn budget(&self, stats: &SampleStats) -> Budget {
        searched_budget(self, stats)
    }

    /// What is asked of the sample.
    fn demand(&self) -> Demand;

    /// The promise, if there is one.
    fn promise(&self) -> Option<Promise> {
        self.demand().promise()
    }

    /// What it needs beside the sample. A pipeline without it is refused.
    fn needs(&self) -> Needs {
        Needs::Variances
    }

    /// How often the sample may be checked while it grows.
    ///
    /// 0: the budget depends on the picks alone (`stats.b` is 0), there is no base sample, and
    /// exactly the budget is drawn.
    fn rounds(&self) -> usize {
        6
    }

    /// The field that decides how much is drawn, and so the [demand](Self::demand). `None`: no epsilon is searched for a given
    /// density.
    fn tunable(&mut self) -> Option<TunableDemand<'_>> {
        None
    }
}

dyn_clone::clone_trait_object!(BudgetEstimator);

/// What an estimator needs to know about a residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The variances of the totals that a sample estimates; any sample of independent draws has them.
    Variances,
    /// The largest weight that a token of a uniform sample can have, which selectors
    /// [prove](crate::plugin::SelectorConfig::bounds_residual).
    Range,
    /// A theorem for finite samples: of a uniform sample, from that range; else the sampler's
    /// [own](crate::plugin::Design::proved).
    Proof,
}

/// The relative error that is exceeded with probability delta at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Radius {
    /// In `[0, ∞]`.
    pub relative: f64,
    /// What it rests on.
    pub kind: Kind,
    /// Its assumptions.
    pub assumes: Assumptions,
}

/// An estimator's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Tokens of the residual that the sample must hold.
    pub tokens: usize,
    /// What the promise rests on.
    pub kind: Kind,
    /// Its assumptions.
    pub assumes: Assumptions,
}

impl Radius {
    /// If `relative` is not a number, nothing is known: it is infinite.
    pub fn new(relative: f64, kind: Kind, assumes: Assumptions) -> Self {
        let relative = if relative.is_nan() { f64::INFINITY } else { relative };
        Self { relative, kind, assumes }
    }
}

/// The least budget whose radius is at most the promise's epsilon: O(log n_s) radii. For estimators
/// with a formula for some budgets only.
pub fn searched_budget<E: BudgetEstimator + ?Sized>(estimator: &E, stats: &SampleStats) -> Budget {
    let epsilon = estimator.promise().map_or(f64::INFINITY, |promise| promise.epsilon.get());
    let at = |b: usize| estimator.radius(&stats.at(b));
    let tokens = fewest(stats.n_s, |b| at(b).relative <= epsilon);
    let Radius { kind, assumes, .. } = at(tokens);
    Budget { tokens, kind, assumes }
}

/// The least of 1 to `n` that suffices, if all larger ones do; `n` if none does.
fn fewest(n: usize, suffices: impl Fn(usize) -> bool) -> usize {
    let (mut too_few, mut enough) = (0, n);
    while enough - too_few.min(enough) > 1 {
        let middle = usize::midpoint(too_few, enough);
        if suffices(middle) { enough = middle } else { too_few = middle }
    }
    enough
}

impl Budget {
    /// The budget of two query heads that share one list: the larger size, and the weaker kind.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.max(other.tokens),
            kind: self.kind.min(other.kind),
            assumes: self.assumes | other.assumes,
        }
    }
}
