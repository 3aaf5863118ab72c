//! The estimator plug-in: it bounds a sample's error.

use std::any::Any;
use std::fmt::Debug;

use dyn_clone::DynClone;

use crate::{
    plugin::{SampleEvidence, TunableGoal},
    promise::{Assumptions, Goal, Kind},
    sample::SampleStats,
};

/// Bounds the error of a sample of the residual, and sets the goal that the sample has to reach.
#[typetag::serde(tag = "type")]
pub trait Estimator: Any + Debug + DynClone + Send + Sync {
    /// The goal of every sample.
    ///
    /// # Errors
    /// Settings that contradict each other, as the end of a sentence about the estimator.
    fn goal(&self) -> Result<Goal, &'static str>;

    /// The evidence that the bound needs. A pipeline whose selectors and sampler do not give it is
    /// refused.
    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Variances
    }

    /// The sizes at which a sample with a promise is checked.
    fn schedule(&self) -> Schedule {
        Schedule::Adaptive { rounds: 6 }
    }

    /// Error bar of a sample of `stats.b` tokens; a pure function.
    ///
    /// It falls as samples of the same moments grow ([`SampleStats::with_size`]): the size that a promise
    /// needs is searched for.
    fn radius(&self, stats: &SampleStats) -> Radius;

    /// The fields that decide how much is drawn, and so the [goal](Self::goal). `None`: no epsilon is
    /// searched for a given density.
    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        None
    }
}

dyn_clone::clone_trait_object!(Estimator);

/// The sizes at which a sample with a promise is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// None: the budget depends on the picks alone (`stats.b` is 0). There is no base sample, and
    /// exactly the budget is drawn.
    Before,
    /// The base, then each size that the check before asked for, at most `rounds` checks.
    Adaptive {
        /// The largest number of checks.
        rounds: usize,
    },
    /// The base, and beyond it only [`check_sizes`], or the [sizes](crate::plugin::SampleProof) of the design's
    /// own proof: a union bound over the checks covers no others.
    FixedSizes {
        /// The largest number of checks.
        rounds: usize,
    },
}

/// Sizes at which a sample may be checked if the checks are counted: `⌊256 · 1.5^i⌋ < n_s`.
pub fn check_sizes(n_s: usize) -> impl Iterator<Item = usize> {
    let sizes = std::iter::successors(Some(256.0), |size| Some(size * 1.5));
    sizes.map(|size: f64| size as usize).take_while(move |&size| size < n_s)
}

/// The relative error that a sample exceeds with probability delta at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Radius {
    /// In `[0, ∞]`.
    pub relative: f64,
    /// The ground that it rests on.
    pub kind: Kind,
    /// Its assumptions.
    pub assumes: Assumptions,
}

/// The size that a promise needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Tokens of the residual that the sample must hold.
    pub tokens: usize,
    /// The ground that the promise rests on.
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
