//! The estimator plug-in: how many tokens a promise needs.

use std::fmt::Debug;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Fraction, SampleStats};

/// Decides how many tokens of the residual must be in the sample.
#[typetag::serde(tag = "type")]
pub trait BudgetEstimator: Debug + Send + Sync {
    /// The number of tokens that the promise needs, judged from a sample; a pure function.
    ///
    /// The sampler clamps it to the residual.
    fn budget(&self, stats: &SampleStats) -> Budget;

    /// What is promised, if anything is.
    fn promise(&self) -> Option<Promise>;

    /// How often the sample may be looked at.
    ///
    /// 0: the budget follows from the certain part alone (`stats.b` is 0), there is no base
    /// sample, and exactly the budget is drawn.
    fn rounds(&self) -> usize {
        6
    }
}

/// An estimator's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Tokens of the residual that the sample must hold.
    pub tokens: usize,
    /// What the promise rests on.
    pub kind: Kind,
}

/// `Pr(relative error of the target > epsilon) ≤ delta`, for one query head at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// What is within epsilon.
    pub target: Target,
    /// The relative error allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
}

/// The quantity that a promise is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The attention output `N / D`, in the Euclidean norm.
    Sdpa,
    /// The softmax denominator `D`.
    Denominator,
    /// The numerator `N`, in the Euclidean norm.
    Numerator,
}

/// What a promise rests on, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing is promised.
    None,
    /// Moments are estimated: it assumes that the sample has seen the residual's tail.
    Asymptotic,
    /// Every quantity in the bound is proved.
    FiniteSample,
    /// Everything was read.
    Exact,
}

impl std::fmt::Display for Target {
    /// The name in pipeline files.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sdpa => "sdpa",
            Self::Denominator => "denominator",
            Self::Numerator => "numerator",
        })
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Asymptotic => "asymptotic",
            Self::FiniteSample => "finite-sample",
            Self::Exact => "exact",
        })
    }
}
