//! `clt`: the sample size by the central limit theorem, with separate bounds for `N` and `D`.
//!
//! Let `s_D = n_s σ / D^` and `s_N = n_s √Tr Cov(e v) / |N^|` be estimated from the sample, and `R`
//! be the largest error relative to the estimate that implies an error of at most ε relative to the
//! target ([`bar_of_radius`](crate::formula::bar_of_radius)). With `combine = "exact"`, the budget
//! `b` is
//!
//! - `denominator`: `b = (z s_D / R)²`
//! - `numerator`: `b = c2(δ) (s_N / R)²`
//! - `sdpa`: `√b = min [√c2(δ_N) s_N + (1 + R) z(δ_D) s_D] / R`, over `δ_N + δ_D = δ`
//!
//! and with `combine = "paper"`
//!
//! - `denominator`: `b = (z s_D / ε)²`
//! - `numerator`: `b = (z s_N / ε)²`
//! - `sdpa`: `√b = min 2 [z(δ_N) s_N + z(δ_D) s_D] / ε`, over `δ_N + δ_D = δ`
//!
//! The budget is then reduced by the finite-population correction, unless `correction = "none"`.
//!
//! The paper draws a new sample of the budget's size. Here the base sample is extended to the
//! budget, and each check uses all tokens drawn so far. With `rounds = 1` the budget is drawn
//! without another check, as in the paper.
//!
//! Cost: O(1) in addition to the statistics; about 20 µs for `sdpa`, milliseconds if δ > 0.215.
//!
//! # Guarantee
//! (eq. 9–11.) Asymptotic: `Pr(relative error of the target > ε) ≤ δ` if no undrawn token is much
//! heavier than the drawn ones (`tail-seen`). The bound is conservative for `sdpa`: measured errors
//! are a quarter to a half of ε, and about an eighth with `combine = "paper"`. The paper's constant
//! for vectors is too small for δ > 0.215.
//!
//! "vAttention: Verified Sparse Attention" (2025), <https://arxiv.org/abs/2510.05688>; `c2`:
//! Székely, Bakirov (2003).

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Estimator, Goal, SampleStats,
    plugin::{Radius, SampleEvidence, Schedule, TunableGoal},
    register, typetag,
};

use crate::formula::{c2, z_two};
use crate::moments::{ErrorQuantiles, radius};
use crate::{Combine, Terms};

/// The paper's estimator, and its corrected form.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Clt(pub Terms);

#[typetag::serde(name = "clt")]
impl Estimator for Clt {
    fn radius(&self, stats: &SampleStats) -> Radius {
        self.with_quantiles(stats.value_dim, |quantiles| radius(&self.0, stats, quantiles))
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        self.0.goal()
    }

    fn evidence(&self) -> SampleEvidence {
        self.0.mode.evidence()
    }

    fn schedule(&self) -> Schedule {
        self.0.mode.schedule(self.0.rounds)
    }

    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        Some(self.0.tunable())
    }
}

impl Clt {
    /// Calls `with` with the quantiles for values of `value_dim` elements.
    fn with_quantiles<T>(
        &self,
        value_dim: usize,
        with: impl FnOnce(&ErrorQuantiles<'_>) -> T,
    ) -> T {
        let vector: &dyn Fn(f64) -> f64 = match self.0.combine {
            Combine::Exact => &|delta| c2(delta, value_dim).sqrt(),
            Combine::Paper => &z_two,
        };
        with(&ErrorQuantiles { scalar: &z_two, vector })
    }
}

register!(
    Estimator,
    "clt",
    Clt,
    "central limit theorem, numerator and denominator bounded separately"
);
