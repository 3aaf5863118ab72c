//! What is promised, and what a promise rests on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Assumptions, Fraction};

/// `Pr(error of the target > epsilon) ≤ delta`, at one step.
///
/// The error is relative to the target; with a floor ρ, to no less than `ρ Σ e |v|` (numerator) or
/// `ρ Σ e |v| / Σ e` (output), which is what the target would be if values did not cancel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Promise {
    /// What is within epsilon.
    pub target: Target,
    /// The relative error allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
    /// ρ: the share of `Σ e |v|` below which the target's norm is taken for that share. A
    /// denominator has no use for it.
    pub floor: Option<Fraction>,
    /// Which rows may exceed it together only with probability delta.
    pub scope: Scope,
}

impl Promise {
    /// About each row by itself, without a floor.
    pub fn new(target: Target, epsilon: Fraction, delta: Fraction) -> Self {
        Self { target, epsilon, delta, floor: None, scope: Scope::Row }
    }
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

/// The rows that a promise is about at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Each query head by itself.
    #[default]
    Row,
    /// All query heads of a layer: that any of them exceeds epsilon has probability delta. Each is
    /// given an equal part of delta.
    Step,
}

impl Scope {
    /// The part of `delta` that one of `query_heads` is given.
    pub fn share_of(self, delta: f64, query_heads: usize) -> f64 {
        match self {
            Self::Row => delta,
            Self::Step => delta / query_heads as f64,
        }
    }
}

/// What a promise rests on, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing is promised.
    None,
    /// Some of it is taken for granted: see the certificate's [`Assumptions`].
    Asymptotic,
    /// Every quantity in the bound is proved.
    FiniteSample,
    /// Everything was read.
    Exact,
}

/// What is promised for one row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Certificate {
    /// Target, epsilon, delta and to whom, if the pipeline promises something.
    pub promise: Option<Promise>,
    /// What the promise rests on.
    pub kind: Kind,
    /// What it takes for granted.
    pub assumes: Assumptions,
    /// Whether the last look found the sample large enough.
    pub held: bool,
}

impl Certificate {
    /// Of a row that read everything.
    pub fn exact(promise: Option<Promise>) -> Self {
        Self { promise, kind: Kind::Exact, assumes: Assumptions::NONE, held: true }
    }
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
