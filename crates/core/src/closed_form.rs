//! Budgets that follow from a few statistics by a formula, for machines that cannot call an
//! estimator.

use crate::{Assumptions, Kind, Size};

/// What a [`BudgetEstimator`](crate::BudgetEstimator) computes, in full: whoever has the statistics
/// can compute it too.
#[derive(Clone, Debug, PartialEq)]
pub enum ClosedForm {
    /// So many tokens, whatever the sample says: drawn at once, and nothing is promised.
    Size(Size),
    /// `√b = min over splits of [√q s_W / ε + z s_D]`, with the statistics `s_W = n_s √Tr Cov(w) / |N|`
    /// (its norm debiased) and `s_D = n_s σ / D`; then the finite-population correction, rounded up.
    Ratio {
        /// The relative error allowed.
        epsilon: f64,
        /// Ways to divide the failure probability; the cheapest counts.
        splits: Vec<Split>,
        /// What a promise rests on.
        kind: Kind,
        /// What it takes for granted.
        assumes: Assumptions,
    },
}

/// One way to divide the failure probability between numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// The most that `q` is, whatever the spectrum.
    pub cap: f64,
    /// `q = min(cap, 1 + kappa / √ν)`, ν being the effective rank.
    pub kappa: f64,
    /// Standard deviations that the denominator is allowed, at least 0.
    pub z: f64,
}

impl Split {
    /// `√q numerator + z denominator`, from what each of them costs at one standard deviation;
    /// `root_nu = √ν`.
    pub fn root(&self, numerator: f64, denominator: f64, root_nu: f64) -> f64 {
        self.cap.min(1.0 + self.kappa / root_nu).sqrt() * numerator + self.z * denominator
    }
}
