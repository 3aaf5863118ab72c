//! Whether a sample is large enough, by the central limit theorem.

use std::sync::Arc;

use vattention_estimators::formula::{RatioGrid, RatioGrids};

use crate::Promised;
use crate::sums::{Sums, square};

/// Terms of a promise that takes the central limit theorem for granted.
#[derive(Clone, Debug)]
pub(crate) struct Asymptotic {
    grid: Arc<RatioGrid>,
    epsilon: f64,
    /// The share of `Σ e |v|` that `|N|` is taken for at least.
    floor: f64,
    /// How many of its own standard errors are added to a variance.
    pub(crate) z: f64,
}

/// What a sample says of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    /// `D^`.
    d: f64,
    /// `|N|`, debiased: `|N^|²` less its variance, at least 5 % of `|N^|²` (eq. 8).
    norm_n: f64,
    /// The estimate of `Σ e |v|`.
    norms: f64,
    /// The effective rank of the covariance of `W^`; at least 1.
    rank: f64,
}

impl Asymptotic {
    /// Terms that may fail with probability `delta`, of which the values have `value_dim` numbers, with
    /// variances larger by `z` of their own standard errors.
    pub(crate) fn new(
        grids: &RatioGrids,
        promised: &Promised,
        value_dim: usize,
        delta: f64,
        z: f64,
    ) -> Self {
        Self {
            grid: grids.get(delta, value_dim),
            epsilon: promised.epsilon.get(),
            floor: promised.least_share(),
            z,
        }
    }

    /// Whether the norm of `N` may be wrong by `error`.
    pub(crate) fn allows(&self, estimate: &Estimate, error: f64) -> bool {
        error <= self.epsilon * self.norm(estimate)
    }

    /// (eq. 13) Whether it suffices that `W^` and `D^` have these variances.
    pub(crate) fn suffices(&self, estimate: &Estimate, [w, e]: [f64; 2]) -> bool {
        let Estimate { d, rank, .. } = *estimate;
        self.grid.budget(self.epsilon, w.sqrt() / self.norm(estimate), e.sqrt() / d, rank) <= 1.0
    }

    /// What an error of the numerator is relative to.
    fn norm(&self, estimate: &Estimate) -> f64 {
        estimate.norm_n.max(self.floor * estimate.norms)
    }
}

impl Estimate {
    /// From estimated sums, of which the numerator's variance is `variance_n`.
    pub(crate) fn new(sums: &Sums, variance_n: f64, rank: f64) -> Self {
        let norm_squared = square(&sums.n);
        let norm_n = (norm_squared - variance_n).max(0.05 * norm_squared).sqrt();
        Self { d: sums.d, norm_n, norms: sums.norms, rank }
    }
}
