//! `hoeffding`: bounds from a range of the weights that is proved, not estimated.
//!
//! The range of `e` over the residual is `[0, B]`. `B` is the largest weight that a token of the
//! residual can have, which an exact selector (`oracle-top-k`, `score = "head"`) proves. The
//! budgets are
//!
//! - `denominator`: Hoeffding's `b = ½ ln(2/δ) (n_s B / (ε D_f))²`, where `D_f ≤ D` is the sum over
//!   the tokens that are always read;
//! - `numerator`: McDiarmid's, from the radius `M + 2M √(ln(1/δ)/2)` of a mean of vectors
//!   `|e v| ≤ M = B max|v|` at one draw;
//! - `sdpa`: both, with the best split of δ.
//!
//! `correction = "finite"` applies Serfling's factor, or its counterpart for vectors. With
//! `combine = "paper"`, `D^` replaces `D_f`.
//!
//! A proved budget is drawn exactly: it does not depend on `rounds` or on a base sample.
//!
//! Cost: O(1) for the denominator; O(b) for each radius of the other targets.
//!
//! # Guarantee
//! (eq. 14, 15.) `denominator` with `combine = "exact"`: finite-sample. Nothing in the bound is
//! estimated, so `Pr(|D^ − D| > ε D) ≤ δ` holds for every input, and the budget is known before the
//! draw. Otherwise: asymptotic, since `|N^|` and `D^` come from the sample. The bounds for
//! `numerator` and `sdpa` are mostly vacuous: nearly everything is read. Without an exact selector
//! there is no range, and everything is read.
//!
//! Hoeffding (1963); Serfling (1974); Bardenet, Maillard (2015); McDiarmid (1989).

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Estimator, Fraction, Goal, Kind, SampleStats, Size, Target,
    plugin::{Radius, SampleEvidence, Schedule, TunableGoal},
    promise::{Assumption, Assumptions, ReferenceRows, SampleGoal, Scope},
    register, typetag,
};

use crate::conversion::Conversion;
use crate::formula::{McDiarmid, hoeffding_radius, sdpa_error, serfling_factor};
use crate::terms::default_rounds;
use crate::{Combine, Correction};

/// Bounds from a proved range of the weights.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hoeffding {
    /// Quantity whose error is bounded.
    pub target: Target,
    /// Promised bound on the relative error. Either this or `size` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<Fraction>,
    /// Size of every sample, in place of `epsilon`; the error bar shows the accuracy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Largest size of a sample. A row for which it does not suffice has an error bar in place of a
    /// promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// Probability with which the error may exceed epsilon, or its error bar.
    pub delta: Fraction,
    /// Rows that share delta: each query head by itself, or all query heads of a layer together.
    #[serde(default)]
    pub scope: Scope,
    /// Rows that errors are relative to: those stored, or those before they were rounded.
    #[serde(default, skip_serializing_if = "ReferenceRows::is_stored")]
    pub reference: ReferenceRows,
    /// Constants of the bound.
    #[serde(default)]
    pub combine: Combine,
    /// Correction for the finite size of the residual.
    #[serde(default)]
    pub correction: Correction,
    /// Largest number of checks, at least 1, if the budget depends on the sample.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
}

impl Hoeffding {
    /// Creates an estimator for a promise, with default settings.
    pub fn new(target: Target, epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            target,
            epsilon: Some(epsilon),
            size: None,
            limit: None,
            delta,
            scope: Scope::default(),
            reference: ReferenceRows::default(),
            combine: Combine::default(),
            correction: Correction::default(),
            rounds: default_rounds(),
        }
    }

    /// Returns true if the budget is proved, so that it is known before the draw.
    fn is_proved(&self) -> bool {
        self.target == Target::Denominator && self.combine == Combine::Exact
    }

    /// Kind of the promise, and its assumptions.
    fn kind(&self) -> (Kind, Assumptions) {
        if self.is_proved() {
            (Kind::FiniteSample, Assumptions::NONE)
        } else {
            (Kind::Asymptotic, Assumptions::only(Assumption::Moments))
        }
    }

    /// Conversion of radii to error bars. No distribution of the errors is assumed. Radii of the
    /// denominator need no conversion, as they are relative to a lower bound of it. The paper
    /// takes estimates for the true values.
    fn conversion(&self) -> Conversion {
        match (self.target, self.combine) {
            (Target::Denominator, _) | (_, Combine::Paper) => Conversion::None,
            (Target::Numerator | Target::Sdpa, Combine::Exact) => Conversion::AnyDistribution,
        }
    }

    /// Error relative to the estimate, if no weight in the residual exceeds `bound`.
    fn error(&self, stats: &SampleStats, delta: f64, bound: f64) -> f64 {
        let (draws, n_s) = (stats.b as f64, stats.n_s as f64);
        // Upper bound on the lengths of `n_s e v`, relative to `|N^|`.
        let largest = n_s * bound * stats.max_norm_v / stats.norm_n;
        let d = if self.is_proved() { stats.d_certain } else { stats.d };
        let (den_factor, num) = match self.correction {
            Correction::Finite => {
                let trace = largest.powi(2) * n_s / (n_s - 1.0);
                let radius = McDiarmid::new(stats.b, stats.n_s, trace, 2.0 * largest);
                (serfling_factor(draws, n_s).max(0.0), radius)
            }
            Correction::None => (1.0, McDiarmid::infinite(draws, largest.powi(2), 2.0 * largest)),
        };
        let den_at_one_draw = |delta: f64| n_s * hoeffding_radius(delta, bound) / d;
        let den = |delta: f64| den_at_one_draw(delta) * (den_factor / draws).sqrt();
        let num = |delta: f64| num.radius(delta);
        match self.target {
            Target::Denominator => den(delta),
            Target::Numerator => num(delta),
            Target::Sdpa => sdpa_error(self.combine, delta, num, den),
        }
    }
}

#[typetag::serde(name = "hoeffding")]
impl Estimator for Hoeffding {
    fn goal(&self) -> Result<Goal, &'static str> {
        let &Self { target, delta, scope, reference, epsilon, size, limit, .. } = self;
        let sample = SampleGoal::new(epsilon, size, limit)?;
        Ok(Goal { target, delta, scope, reference, sample })
    }

    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Range
    }

    fn schedule(&self) -> Schedule {
        if self.is_proved() {
            Schedule::Before
        } else {
            Schedule::Adaptive { rounds: self.rounds.get().into() }
        }
    }

    fn radius(&self, stats: &SampleStats) -> Radius {
        let (kind, assumes) = self.kind();
        let delta = self.scope.row_delta(self.delta.get(), stats.query_heads);
        let error = |bound: f64| self.conversion().bar(self.error(stats, delta, bound), delta);
        Radius::new(stats.bound.map_or(f64::INFINITY, error), kind, assumes)
    }

    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        let Self { epsilon, size, delta, .. } = self;
        Some(TunableGoal { epsilon: epsilon.as_mut(), size: size.as_mut(), delta })
    }
}

register!(
    Estimator,
    "hoeffding",
    Hoeffding,
    "from a range of weights that an exact selector proves; mostly vacuous but for the denominator"
);
