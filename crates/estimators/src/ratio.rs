//! `ratio`: the default; bounds the output's own error instead of those of its parts.
//!
//! With `w = e (v − N/D)` the error is `N^/D^ − N/D = W^/D^` exactly, where `W^` estimates a sum
//! that is 0. So with `s_W = n_s √Tr Cov(w) / |N^|` and `s_D = n_s σ / D`, both estimated,
//!
//! `√b = min over δ_W + δ_D = δ of [√q(δ_W) s_W / R + max(0, z(δ_D)) s_D]`,
//!
//! `q` being the quantile of a Gaussian vector's squared length that suits the effective rank of
//! the sample, and `R` the error relative to the estimate that leaves it within ε of the output
//! ([`bar_of_radius`](crate::formula::bar_of_radius)); then the finite-population correction. The
//! denominator's error has no `1/R`: it is of second order.
//!
//! Cost: O(1) beside the statistics; its tables take tens of milliseconds once.
//!
//! # Guarantee
//! (eq. 12, 13.) Asymptotic: `Pr(|out − SDPA| > ε |SDPA|) ≤ δ` once the sample has seen the residual's tail, with
//! 3.5 times fewer sampled tokens than the paper's theorem on the shipped trace. It can fail where a few tokens that
//! no selector took carry much of the output and the sample missed them all; put a selector that
//! finds heavy tokens in front. Where values cancel, `|N|` is small: nearly everything is read, and
//! the error bar of a smaller sample is infinite.
//!
//! Of this project. The effective-rank quantile is verified numerically, not proved.

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Estimator, Fraction, Goal, SampleStats, Size, Target,
    plugin::{Radius, SampleEvidence, Schedule, TunableGoal},
    promise::{SampleGoal, Scope},
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
    /// The quantity to be within epsilon: the output.
    #[serde(default)]
    pub target: RatioTarget,
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
    /// Assumptions of the bound.
    #[serde(default)]
    pub mode: Mode,
    /// Rows that delta is about: each query head, or all of a layer together.
    #[serde(default)]
    pub scope: Scope,
    /// The largest number of checks, at least 1.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
    #[serde(skip)]
    grids: RatioGrids,
}

/// The one target that this estimator has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RatioTarget {
    /// The attention output.
    #[default]
    Sdpa,
}

impl Ratio {
    /// A promise with every default.
    pub fn new(epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            target: RatioTarget::Sdpa,
            epsilon: Some(epsilon),
            size: None,
            limit: None,
            delta,
            mode: Mode::default(),
            scope: Scope::default(),
            rounds: default_rounds(),
            grids: RatioGrids::default(),
        }
    }

    /// A sample of a size, with every default.
    pub fn sized(size: Size, delta: Fraction) -> Self {
        Self { epsilon: None, size: Some(size), ..Self::new(delta, delta) }
    }

    /// The ways to divide `delta` that are tried for values of `value_dim` elements. The first call may
    /// take tens of milliseconds.
    pub fn splits(&self, delta: f64, value_dim: usize) -> Vec<DeltaSplit> {
        self.grids.get(delta, value_dim).splits().to_vec()
    }

    /// Error by the central limit theorem, from a table made at the first call.
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
        let &Self { delta, scope, epsilon, size, limit, .. } = self;
        let sample = SampleGoal::new(epsilon, size, limit)?;
        Ok(Goal { target: Target::Sdpa, delta, scope, sample })
    }

    fn evidence(&self) -> SampleEvidence {
        self.mode.evidence()
    }

    fn schedule(&self) -> Schedule {
        self.mode.schedule(self.rounds)
    }

    fn radius(&self, stats: &SampleStats) -> Radius {
        let delta = self.scope.share_of(self.delta.get(), stats.query_heads);
        if self.mode == Mode::Rigorous {
            let checks = rigorous::checks(self.size, self.limit, stats.n_s);
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

register!(Estimator, "ratio", Ratio, "the output's own error, the thriftiest promise (default)");
