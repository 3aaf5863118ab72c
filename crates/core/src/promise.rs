//! Goals of samples, promises and error bars, and the grounds that they rest on.

mod assumption;
mod reference_rows;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Fraction, Size};

pub use assumption::{Assumption, Assumptions};
pub use reference_rows::ReferenceRows;

/// Goal of a sample: an error of at most epsilon, or a fixed size and an error bar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Goal {
    /// Quantity whose error is bounded.
    pub target: Target,
    /// Probability with which the error may exceed epsilon, or the radius of the error bar.
    pub delta: Fraction,
    /// Rows to which delta applies.
    pub scope: Scope,
    /// Rows that the error is relative to.
    pub reference: ReferenceRows,
    /// Condition under which the sample is complete.
    #[serde(flatten)]
    pub sample: SampleGoal,
}

/// Condition under which a sample is complete.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum SampleGoal {
    /// The error is at most epsilon.
    Promise {
        /// Relative error allowed.
        epsilon: Fraction,
        /// Largest size of a sample. If it does not suffice, nothing is promised.
        limit: Option<Size>,
    },
    /// The sample has a given size, whatever its error.
    Size {
        /// Number of tokens drawn.
        size: Size,
    },
}

impl SampleGoal {
    /// Creates a goal from the fields of an estimator.
    ///
    /// # Errors
    /// Returns a message about missing or contradictory fields, which continues a sentence that
    /// begins with the estimator's name.
    pub fn new(
        epsilon: Option<Fraction>,
        size: Option<Size>,
        limit: Option<Size>,
    ) -> Result<Self, &'static str> {
        match (epsilon, size, limit) {
            (Some(epsilon), None, limit) => Ok(Self::Promise { epsilon, limit }),
            (None, Some(size), None) => Ok(Self::Size { size }),
            (None, None, _) => Err("sets neither `epsilon` nor `size`"),
            (Some(_), Some(_), _) => Err("sets both `epsilon` and `size`"),
            (None, Some(_), Some(_)) => Err("sets both `limit` and `size`; a `size` is exact"),
        }
    }
}

impl Goal {
    /// Relative error allowed, if the goal is a promise.
    pub fn epsilon(&self) -> Option<Fraction> {
        match self.sample {
            SampleGoal::Promise { epsilon, .. } => Some(epsilon),
            SampleGoal::Size { .. } => None,
        }
    }

    /// Size of every sample, if the goal is a size.
    pub fn size(&self) -> Option<Size> {
        match self.sample {
            SampleGoal::Promise { .. } => None,
            SampleGoal::Size { size } => Some(size),
        }
    }

    /// Largest size of a sample, if the goal is a promise with a limit.
    pub fn limit(&self) -> Option<Size> {
        match self.sample {
            SampleGoal::Promise { limit, .. } => limit,
            SampleGoal::Size { .. } => None,
        }
    }

    /// Promise, if the goal is one.
    pub fn promise(&self) -> Option<Promise> {
        let &Self { target, delta, scope, reference, .. } = self;
        self.epsilon().map(|epsilon| Promise { target, epsilon, delta, scope, reference })
    }

    /// Error bar with a given radius.
    pub fn bar(&self, radius: f64) -> ErrorBar {
        let &Self { target, delta, scope, reference, .. } = self;
        ErrorBar { target, delta, scope, reference, radius }
    }

    /// Failure probability of one row in a layer of `query_heads` query heads.
    pub fn row_delta(&self, query_heads: usize) -> f64 {
        self.scope.row_delta(self.delta.get(), query_heads)
    }
}

impl From<Promise> for Goal {
    /// Goal of a promise without a limit.
    fn from(promise: Promise) -> Self {
        let Promise { target, epsilon, delta, scope, reference } = promise;
        let sample = SampleGoal::Promise { epsilon, limit: None };
        Self { target, delta, scope, reference, sample }
    }
}

/// `Pr(error of the target > radius) ≤ delta`, at one step, for one sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ErrorBar {
    /// Quantity whose error is bounded.
    pub target: Target,
    /// Probability with which the error may exceed the radius.
    pub delta: Fraction,
    /// Rows to which delta applies.
    pub scope: Scope,
    /// Rows that the error is relative to.
    pub reference: ReferenceRows,
    /// Relative error, in `[0, ∞]`.
    pub radius: f64,
}

/// `Pr(error of the target > epsilon) ≤ delta`, at one step.
///
/// The error is relative to the target's norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Promise {
    /// Quantity whose error is bounded.
    pub target: Target,
    /// Relative error allowed.
    pub epsilon: Fraction,
    /// Probability with which the error may exceed epsilon.
    pub delta: Fraction,
    /// Rows to which delta applies.
    pub scope: Scope,
    /// Rows that the error is relative to.
    pub reference: ReferenceRows,
}

impl Promise {
    /// Creates a promise for each query head separately, relative to attention over stored rows.
    pub fn new(target: Target, epsilon: Fraction, delta: Fraction) -> Self {
        Self { target, epsilon, delta, scope: Scope::Row, reference: ReferenceRows::Stored }
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

/// Rows to which one failure probability applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Each query head by itself.
    #[default]
    Row,
    /// All query heads of a layer together: any of them exceeds epsilon with probability at most
    /// delta. Each query head gets an equal part of delta.
    Step,
}

impl Scope {
    /// Part of `delta` for one of `query_heads` query heads.
    pub fn row_delta(self, delta: f64, query_heads: usize) -> f64 {
        match self {
            Self::Row => delta,
            Self::Step => delta / query_heads as f64,
        }
    }
}

/// Ground that a promise rests on, weakest first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing is promised.
    None,
    /// The bound holds under the certificate's [`Assumptions`].
    Asymptotic,
    /// Every quantity in the bound is proved.
    FiniteSample,
    /// Every token was read.
    Exact,
}

/// Promise and error bar of one row, and the ground that they rest on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Certificate {
    /// Promise, if the pipeline makes one and a sample of at most the limit suffices for it.
    pub promise: Option<Promise>,
    /// Error bar at the last check. `None` if nothing was drawn, if the sampler provides no
    /// evidence of its error, or if the device does not report it.
    pub bar: Option<ErrorBar>,
    /// Ground of promise and error bar.
    pub kind: Kind,
    /// Assumptions of promise and error bar.
    pub assumes: Assumptions,
    /// True if the last check found the sample large enough for the promise.
    pub held: bool,
}

impl Certificate {
    /// Returns true if there is an error bar without a promise: the goal was a size, or the limit
    /// did not suffice.
    pub fn has_only_bar(&self) -> bool {
        self.promise.is_none() && self.bar.is_some()
    }

    /// Certificate of a row that read every token, if the pipeline has this `goal`.
    pub fn exact(goal: Option<Goal>) -> Self {
        let promise = goal.and_then(|goal| goal.promise());
        let bar = goal.map(|goal| goal.bar(0.0));
        Self { promise, bar, kind: Kind::Exact, assumes: Assumptions::NONE, held: true }
    }

    /// Certificate of a row that read every token of rounded rows, if the error relative to the
    /// unrounded rows is at most `radius`. The promise is left out if it is not met.
    #[must_use]
    pub fn exact_but_rounded(self, radius: f64) -> Self {
        if radius == 0.0 {
            return self;
        }
        let meets = |promise: &Promise| radius <= promise.epsilon.get();
        let held = self.promise.as_ref().is_none_or(meets);
        let bar = self.bar.map(|bar| ErrorBar { radius, ..bar });
        Self { promise: self.promise.filter(meets), bar, kind: Kind::FiniteSample, held, ..self }
    }
}

impl std::fmt::Display for Target {
    /// Writes the name in pipeline files.
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
