//! Goals of samples, promises, error bars, and the grounds that these rest on.

mod assumption;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Fraction, Size};

pub use assumption::{Assumption, Assumptions};

/// The goal of a sample: an error within epsilon, or a size with an error bar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// The quantity that the error is of.
    pub target: Target,
    /// The probability with which the error may exceed epsilon, or its bar.
    pub delta: Fraction,
    /// The rows that delta is about.
    pub scope: Scope,
    /// Condition that ends the sample.
    #[serde(flatten)]
    pub sample: SampleGoal,
}

/// Condition that ends a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SampleGoal {
    /// A promise.
    Promise {
        /// The relative error allowed.
        epsilon: Fraction,
        /// The most tokens of a sample: where these do not suffice, nothing is promised.
        limit: Option<Size>,
    },
    /// Tokens of every sample, whatever its error.
    Size {
        /// Their number.
        size: Size,
    },
}

impl SampleGoal {
    /// The goal that an estimator's fields ask for.
    ///
    /// # Errors
    /// Fields that contradict each other.
    pub fn new(
        epsilon: Option<Fraction>,
        size: Option<Size>,
        limit: Option<Size>,
    ) -> Result<Self, &'static str> {
        match (epsilon, size, limit) {
            (Some(epsilon), None, limit) => Ok(Self::Promise { epsilon, limit }),
            (None, Some(size), None) => Ok(Self::Size { size }),
            (None, None, _) => Err("says neither `epsilon` nor `size`"),
            (Some(_), Some(_), _) => Err("says both `epsilon` and `size`"),
            (None, Some(_), Some(_)) => Err("says `limit` beside `size`, which is exact"),
        }
    }
}

impl Goal {
    /// The relative error allowed, of a promise.
    pub fn epsilon(&self) -> Option<Fraction> {
        match self.sample {
            SampleGoal::Promise { epsilon, .. } => Some(epsilon),
            SampleGoal::Size { .. } => None,
        }
    }

    /// The size of every sample, if it is given.
    pub fn size(&self) -> Option<Size> {
        match self.sample {
            SampleGoal::Promise { .. } => None,
            SampleGoal::Size { size } => Some(size),
        }
    }

    /// The limit of a promise.
    pub fn limit(&self) -> Option<Size> {
        match self.sample {
            SampleGoal::Promise { limit, .. } => limit,
            SampleGoal::Size { .. } => None,
        }
    }

    /// The promise, if there is an epsilon.
    pub fn promise(&self) -> Option<Promise> {
        let &Self { target, delta, scope, .. } = self;
        self.epsilon().map(|epsilon| Promise { target, epsilon, delta, scope })
    }

    /// The error bar of a radius.
    pub fn bar(&self, radius: f64) -> ErrorBar {
        let &Self { target, delta, scope, .. } = self;
        ErrorBar { target, delta, scope, radius }
    }

    /// The part of delta that one of a layer's `query_heads` is given.
    pub fn row_delta(&self, query_heads: usize) -> f64 {
        self.scope.share_of(self.delta.get(), query_heads)
    }
}

impl From<Promise> for Goal {
    /// Without a limit.
    fn from(promise: Promise) -> Self {
        let Promise { target, epsilon, delta, scope } = promise;
        Self { target, delta, scope, sample: SampleGoal::Promise { epsilon, limit: None } }
    }
}

/// `Pr(error of the target > radius) ≤ delta`, at one step, for one sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ErrorBar {
    /// The quantity that the error is of.
    pub target: Target,
    /// The probability with which it may exceed the radius.
    pub delta: Fraction,
    /// The rows that delta is about.
    pub scope: Scope,
    /// The relative error, in `[0, ∞]`.
    pub radius: f64,
}

/// `Pr(error of the target > epsilon) ≤ delta`, at one step.
///
/// The error is relative to the target's norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Promise {
    /// The quantity within epsilon.
    pub target: Target,
    /// The relative error allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
    /// The rows that delta is about.
    pub scope: Scope,
}

impl Promise {
    /// For each row by itself.
    pub fn new(target: Target, epsilon: Fraction, delta: Fraction) -> Self {
        Self { target, epsilon, delta, scope: Scope::Row }
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

/// Grounds of a promise, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing is promised.
    None,
    /// Some assumptions are made: see the certificate's [`Assumptions`].
    Asymptotic,
    /// Every quantity in the bound is proved.
    FiniteSample,
    /// Everything was read.
    Exact,
}

/// The promise for one row, and its error bar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Certificate {
    /// Target, epsilon, delta and scope, if the pipeline makes a promise.
    pub promise: Option<Promise>,
    /// The error bar at the last check. `None` if nothing was drawn, if a sampler's draws say
    /// nothing, or if the device does not report it.
    pub bar: Option<ErrorBar>,
    /// The ground of promise and bar.
    pub kind: Kind,
    /// Its assumptions.
    pub assumes: Assumptions,
    /// True if the last check found the sample large enough for the promise.
    pub held: bool,
}

impl Certificate {
    /// Returns true for an error bar without a promise: the row had a size, or the limit did not
    /// suffice.
    pub fn is_bar_alone(&self) -> bool {
        self.promise.is_none() && self.bar.is_some()
    }

    /// For a row with a `goal` that read everything.
    pub fn exact(goal: Option<Goal>) -> Self {
        let promise = goal.and_then(|goal| goal.promise());
        let bar = goal.map(|goal| goal.bar(0.0));
        Self { promise, bar, kind: Kind::Exact, assumes: Assumptions::NONE, held: true }
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
