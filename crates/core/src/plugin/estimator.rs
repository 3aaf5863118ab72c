//! The estimator plug-in, which bounds the error of a sample.

use std::any::Any;
use std::fmt::Debug;

use dyn_clone::DynClone;

use crate::{
    plugin::{SampleEvidence, TunableGoal},
    promise::{Assumptions, Goal, Kind},
    sample::SampleStats,
};

/// Bounds the error of a sample of the residual, and sets the goal of the sample.
#[typetag::serde(tag = "type")]
pub trait Estimator: Any + Debug + DynClone + Send + Sync {
    /// Goal of every sample.
    ///
    /// # Errors
    /// Returns a message about settings that contradict each other. The message continues a
    /// sentence that begins with the estimator's name.
    fn goal(&self) -> Result<Goal, &'static str>;

    /// Evidence that the bound needs. A pipeline whose selectors and sampler do not provide it is
    /// refused.
    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Variances
    }

    /// Sizes at which a sample with a promise is checked.
    fn schedule(&self) -> Schedule {
        Schedule::Adaptive { rounds: 6 }
    }

    /// Error bar of a sample of `stats.b` tokens; a pure function.
    ///
    /// The search for the size that a promise requires expects that the error bar decreases as
    /// `stats.b` grows and the moments stay the same ([`SampleStats::with_size`]).
    fn radius(&self, stats: &SampleStats) -> Radius;

    /// Fields that set the [goal](Self::goal). Searches for a density or an error vary them. `None`
    /// means that no search can vary the goal.
    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        None
    }
}

dyn_clone::clone_trait_object!(Estimator);

/// Sizes at which a sample with a promise is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// No size: the budget is computed before any draw, from the picks alone (`stats.b` is 0), and
    /// exactly the budget is drawn.
    Before,
    /// The base, then each size that the previous check required.
    Adaptive {
        /// Largest number of checks.
        rounds: usize,
    },
    /// The base, then only sizes from [`check_sizes`], or from the
    /// [proof](crate::plugin::SampleProof) of a design, because a union bound over the checks
    /// covers no other sizes.
    FixedSizes {
        /// Largest number of checks.
        rounds: usize,
    },
}

/// Sizes at which samples out of `n_s` tokens may be checked under [`Schedule::FixedSizes`]:
/// `⌊256 · 1.5^i⌋ < n_s`.
pub fn check_sizes(n_s: usize) -> impl Iterator<Item = usize> {
    let sizes = std::iter::successors(Some(256.0), |size| Some(size * 1.5));
    sizes.map(|size: f64| size as usize).take_while(move |&size| size < n_s)
}

/// Relative error that a sample exceeds with probability at most delta.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Radius {
    /// Relative error, in `[0, ∞]`.
    pub relative: f64,
    /// Ground that the bound rests on.
    pub kind: Kind,
    /// Assumptions of the bound.
    pub assumes: Assumptions,
}

/// Sample size that a promise requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Number of tokens of the residual that must be drawn.
    pub tokens: usize,
    /// Ground that the promise rests on.
    pub kind: Kind,
    /// Assumptions of the promise.
    pub assumes: Assumptions,
}

impl Radius {
    /// Creates a radius. If `relative` is NaN, the radius is infinite, because a NaN bounds
    /// nothing.
    pub fn new(relative: f64, kind: Kind, assumes: Assumptions) -> Self {
        let relative = if relative.is_nan() { f64::INFINITY } else { relative };
        Self { relative, kind, assumes }
    }
}

impl Budget {
    /// Budget of two query heads that share a token list: the larger size, the weaker kind, and the
    /// assumptions of both.
    pub(crate) fn combine(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.max(other.tokens),
            kind: self.kind.min(other.kind),
            assumes: self.assumes | other.assumes,
        }
    }
}
