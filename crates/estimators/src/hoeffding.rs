//! `hoeffding`: bounds from a range that is known, not estimated.
//!
//! The range of `e` over the residual is `[0, B]`, `B` being the largest weight that an untaken
//! token can have, which an exact selector (`oracle-top-k`, `score = "head"`) tells.
//!
//! | target        | budget                                                                           |
//! |---------------|----------------------------------------------------------------------------------|
//! | `denominator` | Hoeffding: `b = ½ ln(2/δ) (n_s B / (ε D_f))²`, `D_f ≤ D` the certain tokens' part |
//! | `numerator`   | McDiarmid: radius `M + 2M √(ln(1/δ)/2)` of a mean of vectors `|e v| ≤ M = B max|v|` |
//! | `sdpa`        | both, with the best split of δ                                                   |
//!
//! With `correction = "finite"`, Serfling's factor and its like for vectors. With `combine =
//! "paper"`, `D^` stands for `D_f`.
//!
//! A proved budget is drawn exactly: `rounds` and the base sample play no part in it.
//!
//! Cost: O(1) for the denominator; O(b) for each radius of the others.
//!
//! # Guarantee
//! (eq. 14, 15.) `denominator` (not `combine = "paper"`): finite-sample. Nothing in the bound is estimated, so
//! `Pr(|D^ − D| > ε D) ≤ δ` holds for every input; the budget is known before anything is drawn.
//! `numerator`, `sdpa`: asymptotic, since `|N^|` and `D^` come from the sample; and mostly vacuous,
//! they read nearly everything. Without an exact selector there is no range: everything is read.
//!
//! Hoeffding (1963); Serfling (1974); Bardenet, Maillard (2015); McDiarmid (1989).

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Estimator, Fraction, Goal, Kind, SampleStats, Size, Target,
    plugin::{Radius, SampleEvidence, Schedule, TunableGoal},
    promise::{Assumption, Assumptions, SampleGoal, Scope},
    register, typetag,
};

use crate::conversion::Conversion;
use crate::formula::{McDiarmid, hoeffding_radius, sdpa_error, serfling_factor};
use crate::terms::default_rounds;
use crate::{Combine, Correction};

/// Bounds from a proved range.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hoeffding {
    /// The quantity to be within epsilon.
    pub target: Target,
    /// The relative error allowed: a promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<Fraction>,
    /// Tokens of every sample, instead; its error bar says how accurate it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// The most tokens of a sample. Where they do not suffice, the row has an error bar in place of a
    /// promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// The probability with which the error may exceed epsilon, or its bar.
    pub delta: Fraction,
    /// Rows that delta is about: each query head, or all of a layer together.
    #[serde(default)]
    pub scope: Scope,
    /// Constants of the bound.
    #[serde(default)]
    pub combine: Combine,
    /// Correction for the residual being finite.
    #[serde(default)]
    pub correction: Correction,
    /// The largest number of checks, at least 1, if the budget depends on the sample.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
}

impl Hoeffding {
    /// A promise with every default.
    pub fn new(target: Target, epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            target,
            epsilon: Some(epsilon),
            size: None,
            limit: None,
            delta,
            scope: Scope::default(),
            combine: Combine::default(),
            correction: Correction::default(),
            rounds: default_rounds(),
        }
    }

    /// Returns true if the budget is known before anything is drawn.
    fn proved(&self) -> bool {
        self.target == Target::Denominator && self.combine == Combine::Exact
    }

    /// The ground of the promise, and its assumptions.
    fn ground(&self) -> (Kind, Assumptions) {
        if self.proved() {
            (Kind::FiniteSample, Assumptions::NONE)
        } else {
            (Kind::Asymptotic, Assumptions::only(Assumption::Moments))
        }
    }

    /// Norms are estimated, and the errors' distribution is not known. A proved denominator's error is
    /// relative to a lower bound.
    fn conversion(&self) -> Conversion {
        match (self.target, self.combine) {
            (Target::Denominator, _) | (_, Combine::Paper) => Conversion::None,
            (Target::Numerator | Target::Sdpa, Combine::Exact) => Conversion::Sure,
        }
    }

    /// Error relative to the estimate; no residual weight exceeds `bound`.
    fn error(&self, stats: &SampleStats, delta: f64, bound: f64) -> f64 {
        let (draws, n_s) = (stats.b as f64, stats.n_s as f64);
        // The vectors `e v` are no longer than this, relative to `|N|`.
        let largest = n_s * bound * stats.max_norm_v / stats.norm_n;
        let d = if self.proved() { stats.d_certain } else { stats.d };
        let (den_shrink, num) = match self.correction {
            Correction::Finite => {
                let trace = largest.powi(2) * n_s / (n_s - 1.0);
                let radius = McDiarmid::new(stats.b, stats.n_s, trace, 2.0 * largest);
                (serfling_factor(draws, n_s).max(0.0), radius)
            }
            Correction::None => (1.0, McDiarmid::infinite(draws, largest.powi(2), 2.0 * largest)),
        };
        let one = |delta: f64| n_s * hoeffding_radius(delta, bound) / d;
        let den = |delta: f64| one(delta) * (den_shrink / draws).sqrt();
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
        let &Self { target, delta, scope, epsilon, size, limit, .. } = self;
        Ok(Goal { target, delta, scope, sample: SampleGoal::new(epsilon, size, limit)? })
    }

    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Range
    }

    fn schedule(&self) -> Schedule {
        if self.proved() {
            Schedule::Before
        } else {
            Schedule::Adaptive { rounds: self.rounds.get().into() }
        }
    }

    fn radius(&self, stats: &SampleStats) -> Radius {
        let (kind, assumes) = self.ground();
        let delta = self.scope.share_of(self.delta.get(), stats.query_heads);
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
    "from the proved range that an exact selector leaves; mostly vacuous but for the denominator"
);
