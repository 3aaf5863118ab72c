//! `ratio`: the default; bounds the output's own error instead of those of its parts.
//!
//! With `w = e (v − N/D)` the error is `N^/D^ − N/D = W^/D^` exactly, where `W^` estimates a sum
//! that is 0. So with `s_W = n_s √Tr Cov(w) / |N|` and `s_D = n_s σ / D`, both estimated,
//!
//! `√b = min over δ_W + δ_D = δ of [√q(δ_W) s_W / ε + max(0, z(δ_D)) s_D]`,
//!
//! `q` being the quantile of a Gaussian vector's squared length that suits the effective rank of
//! the sample; then the finite-population correction. The denominator's error has no `1/ε`: it is
//! of second order.
//!
//! Cost: O(1) beside the statistics; its tables take tens of milliseconds once.
//!
//! # Guarantee
//! (eq. 12, 13.) Asymptotic: `Pr(|out − SDPA| > ε |SDPA|) ≤ δ` once the sample has seen the residual's tail, with
//! 8 times fewer sampled tokens than the paper's theorem on the shipped trace. It can fail where a few tokens that
//! no selector took carry much of the output and the sample missed them all; put a selector that
//! finds heavy tokens in front. Where values cancel, `|N|` is small and everything is read.
//!
//! Of this project. The effective-rank quantile is verified numerically, not proved.

use std::num::NonZeroU8;
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Budget, BudgetEstimator, Fraction, Kind, Promise, SampleStats, Target, register, typetag,
};

use crate::formula::{RatioGrid, fpc, whole_tokens};
use crate::terms::default_rounds;

/// The direct ratio estimator.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// What is to be within epsilon: the output.
    #[serde(default)]
    pub target: RatioTarget,
    /// The relative error allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
    /// How often the sample may be looked at, at least 1.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
    #[serde(skip)]
    grids: Grids,
}

/// Tables made so far, one for each value dimension that needs its own.
#[derive(Default)]
struct Grids(RwLock<Vec<Arc<RatioGrid>>>);

impl Grids {
    /// The table for values of `rank` numbers.
    fn get(&self, rank: usize, make: impl Fn() -> RatioGrid) -> Arc<RatioGrid> {
        let find = |grids: &[Arc<RatioGrid>]| grids.iter().find(|grid| grid.fits(rank)).cloned();
        let found = find(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        found.unwrap_or_else(|| {
            let mut grids = self.0.write().unwrap_or_else(PoisonError::into_inner);
            find(&grids).unwrap_or_else(|| {
                let grid = Arc::new(make());
                grids.push(grid.clone());
                grid
            })
        })
    }
}

/// A clone makes its own tables.
impl Clone for Grids {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for Grids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grids")
    }
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
    /// An estimator with the default number of looks.
    pub fn new(epsilon: Fraction, delta: Fraction) -> Self {
        let (target, rounds) = (RatioTarget::Sdpa, default_rounds());
        Self { target, epsilon, delta, rounds, grids: Grids::default() }
    }

    /// The budget for an infinite population, from tables made at the first call.
    fn infinite(&self, stats: &SampleStats) -> f64 {
        let make = || RatioGrid::new(self.epsilon.get(), self.delta.get(), stats.value_dim);
        let n_s = stats.n_s as f64;
        let s_w = n_s * stats.trace_w.sqrt() / stats.norm_n_debiased;
        let s_d = n_s * stats.var_e.sqrt() / stats.d;
        self.grids.get(stats.value_dim, make).budget(s_w, s_d, stats.nu)
    }
}

#[typetag::serde(name = "ratio")]
impl BudgetEstimator for Ratio {
    fn budget(&self, stats: &SampleStats) -> Budget {
        let b = fpc(self.infinite(stats), stats.n_s);
        Budget { tokens: whole_tokens(b, stats.n_s), kind: Kind::Asymptotic }
    }

    fn promise(&self) -> Option<Promise> {
        Some(Promise { target: Target::Sdpa, epsilon: self.epsilon, delta: self.delta })
    }

    fn rounds(&self) -> usize {
        self.rounds.get().into()
    }
}

register!(Estimator, "ratio", Ratio, "the output's own error, the thriftiest promise (default)");
