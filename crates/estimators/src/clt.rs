//! `clt`: as many tokens as the central limit theorem asks for, `N` and `D` bounded apart.
//!
//! With `s_D = n_s σ / D^`, `s_N = n_s √Tr Cov(e v) / |N^|` from the sample, and `R` the error relative to
//! the estimate that leaves it within ε of the target ([`bar_of_radius`](crate::formula::bar_of_radius)):
//!
//! | target        | `combine = "exact"`                                | `combine = "paper"`                        |
//! |---------------|----------------------------------------------------|--------------------------------------------|
//! | `denominator` | `b = (z s_D / R)²`                                 | `b = (z s_D / ε)²`                         |
//! | `numerator`   | `b = c2(δ) (s_N / R)²`                             | `b = (z s_N / ε)²`                         |
//! | `sdpa`        | `√b = min [√c2(δ_N) s_N + (1 + R) z(δ_D) s_D] / R` | `√b = min 2 [z(δ_N) s_N + z(δ_D) s_D] / ε` |
//!
//! The paper draws a fresh sample of the budget's size; here the base sample is extended to it, so
//! the base counts, and each check judges by all tokens so far. With `rounds = 1` the budget is
//! drawn unchecked, as in the paper.
//!
//! Then the finite-population correction, unless `correction = "none"`.
//!
//! Cost: O(1) beside the statistics; some 20 µs for `sdpa`, milliseconds there if δ > 0.215.
//!
//! # Guarantee
//! (eq. 9–11.) Asymptotic: `Pr(relative error of the target > ε) ≤ δ` once the sample has seen the residual's
//! tail. Conservative for `sdpa`, whose measured error is a quarter to a half of ε; with `combine =
//! "paper"` about an eighth. The paper's constant for vectors is too small for δ > 0.215.
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
use crate::moments::{Quantiles, radius};
use crate::{Combine, Terms};

/// The paper's estimator, and its repaired form.
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
    /// Calls with the quantiles for values of `value_dim` elements.
    fn with_quantiles<T>(&self, value_dim: usize, with: impl FnOnce(&Quantiles<'_>) -> T) -> T {
        let vector: &dyn Fn(f64) -> f64 = match self.0.combine {
            Combine::Exact => &|delta| c2(delta, value_dim).sqrt(),
            Combine::Paper => &z_two,
        };
        with(&Quantiles { scalar: &z_two, vector })
    }
}

register!(Estimator, "clt", Clt, "central limit theorem, numerator and denominator bounded apart");
