//! `ratio`, the default: a bound on the output's own error instead of the errors of `N` and `D`.
//!
//! With `w = e (v − N/D)` the error is `N^/D^ − N/D = W^/D^` exactly, where `W^` estimates a sum
//! that is 0. So with `s_W = n_s √Tr Cov(w) / |N^|` and `s_D = n_s σ / D`, both estimated, the
//! budget `b` is
//!
//! `√b = min over δ_W + δ_D = δ of [√q(δ_W) s_W / R + max(0, z(δ_D)) s_D]`,
//!
//! followed by the finite-population correction. Here `q` is a quantile of the squared length of a
//! Gaussian vector with the sample's effective rank, and `R` is the largest error relative to the
//! estimate that implies an error of at most ε relative to the output
//! ([`bar_of_radius`](crate::formula::bar_of_radius)). The term of the denominator has no factor
//! `1/R`: its error is of second order.
//!
//! Cost: O(1) in addition to the statistics; the tables take tens of milliseconds once.
//!
//! # Guarantee
//! (eq. 12, 13.) Asymptotic: `Pr(|out − SDPA| > ε |SDPA|) ≤ δ` if no undrawn token is much heavier
//! than the drawn ones (`tail-seen`). On the shipped trace, samples are 3.5 times smaller than by
//! the paper's theorem. The promise can fail where a few tokens carry much of the output, no
//! selector picked them, and the sample missed all of them; use a selector that finds heavy tokens.
//! Where values cancel, `|N|` is small: nearly everything is read, and the error bar of a smaller
//! sample is infinite.
//!
//! The estimator is this project's own. The quantile by effective rank is verified numerically, not
//! proved.

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Estimator, Fraction, Goal, SampleStats, Size, Target,
    plugin::{Radius, SampleEvidence, Schedule, TunableGoal},
    promise::{ReferenceRows, SampleGoal, Scope},
    register, typetag,
};

use crate::formula::{DeltaSplit, RatioGrids, unbounded};
use crate::mode::Corrections;
use crate::terms::default_rounds;
use crate::{Mode, rigorous};

/// The direct ratio estimator.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// Quantity whose error is bounded: the output.
    #[serde(default)]
    pub target: RatioTarget,
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
    /// Assumptions of the bound.
    #[serde(default)]
    pub mode: Mode,
    /// Rows that share delta: each query head by itself, or all query heads of a layer together.
    #[serde(default)]
    pub scope: Scope,
    /// Rows that errors are relative to: those stored, or those before they were rounded.
    #[serde(default, skip_serializing_if = "ReferenceRows::is_stored")]
    pub reference: ReferenceRows,
    /// Largest number of checks, at least 1.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
    #[serde(skip)]
    grids: RatioGrids,
}

/// Target of `ratio`: the attention output is the only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RatioTarget {
    /// The attention output.
    #[default]
    Sdpa,
}

impl Ratio {
    /// Creates an estimator for a promise, with default settings.
    pub fn new(epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            target: RatioTarget::Sdpa,
            epsilon: Some(epsilon),
            size: None,
            limit: None,
            delta,
            mode: Mode::default(),
            scope: Scope::default(),
            reference: ReferenceRows::default(),
            rounds: default_rounds(),
            grids: RatioGrids::default(),
        }
    }

    /// Creates an estimator for samples of a fixed size, with default settings.
    pub fn sized(size: Size, delta: Fraction) -> Self {
        Self { epsilon: None, size: Some(size), ..Self::new(delta, delta) }
    }

    /// Splits of `delta` over which the budget is minimised, for values of `value_dim` elements.
    /// The first call may take tens of milliseconds.
    pub fn splits(&self, delta: f64, value_dim: usize) -> Vec<DeltaSplit> {
        self.grids.get(delta, value_dim).splits().to_vec()
    }

    /// Error relative to the estimate by the central limit theorem, from a table that the first
    /// call computes.
    fn error(&self, stats: &SampleStats, delta: f64) -> f64 {
        let n_s = stats.n_s as f64;
        let s_w = n_s * stats.trace_w.sqrt() / stats.norm_n;
        let s_d = n_s * stats.var_e.sqrt() / stats.d;
        let grid = self.grids.get(delta, stats.value_dim);
        grid.error(unbounded(stats.b as f64, stats.n_s), s_w, s_d, stats.nu)
    }
}

#[typetag::serde(name = "ratio")]
impl Estimator for Ratio {
    fn goal(&self) -> Result<Goal, &'static str> {
        let &Self { delta, scope, reference, epsilon, size, limit, .. } = self;
        let sample = SampleGoal::new(epsilon, size, limit)?;
        Ok(Goal { target: Target::Sdpa, delta, scope, reference, sample })
    }

    fn evidence(&self) -> SampleEvidence {
        self.mode.evidence()
    }

    fn schedule(&self) -> Schedule {
        self.mode.schedule(self.rounds)
    }

    fn radius(&self, stats: &SampleStats) -> Radius {
        let delta = self.scope.row_delta(self.delta.get(), stats.query_heads);
        if self.mode == Mode::Rigorous {
            let checks = rigorous::count_checks(self.size, self.limit, stats.n_s);
            return rigorous::radius(Target::Sdpa, delta / checks as f64, stats);
        }
        let error = |stats: &SampleStats, delta: f64| self.error(stats, delta);
        self.mode.radius(Target::Sdpa, delta, stats, Corrections::NORMAL, error)
    }

    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        let Self { epsilon, size, delta, .. } = self;
        Some(TunableGoal { epsilon: epsilon.as_mut(), size: size.as_mut(), delta })
    }
}

register!(
    Estimator,
    "ratio",
    Ratio,
    "bound on the output's own error, which needs the fewest tokens (default)"
);
