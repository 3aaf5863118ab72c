//! Budgets that follow from a few statistics by a formula, for machines that cannot call an
//! estimator.

use crate::{Assumptions, Kind, Size};

/// What a [`BudgetEstimator`](crate::BudgetEstimator) computes, in full: whoever has the statistics
/// can compute it too.
#[derive(Clone, Debug, PartialEq)]
pub enum ClosedForm {
    /// So many tokens, whatever the sample says: drawn at once, and nothing is promised.
    Size(Size),
    /// As a formula of the sample's statistics says.
    Formula {
        /// The formula.
        formula: Formula,
        /// What a promise rests on.
        kind: Kind,
        /// What it takes for granted.
        assumes: Assumptions,
    },
}

/// `√b = min over splits of [√q s / ε + z s_D]`, with the statistics `s` of the numerator and
/// `s_D = n_s σ / D` of the denominator; then the finite-population correction, if there is one, rounded
/// up.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    /// What `s` is.
    pub numerator: Numerator,
    /// The relative error allowed.
    pub epsilon: f64,
    /// Ways to divide the failure probability; the cheapest counts.
    pub splits: Vec<Split>,
    /// Whether the finite-population correction is made.
    pub finite: bool,
}

/// How far the numerator may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerator {
    /// `n_s √Tr Cov(w) / |N|`, the error of the output itself; the norm is debiased.
    Output,
    /// `n_s √Tr Cov(e v) / |N|`; the norm is debiased.
    Debiased,
    /// `n_s √Tr Cov(e v) / |N|`; the norm is as estimated.
    AsEstimated,
}

/// One way to divide the failure probability between numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// The most that `q` is, whatever the spectrum; 0 if the numerator does not count.
    pub cap: f64,
    /// `q = min(cap, 1 + kappa / √ν)`, ν being the effective rank.
    pub kappa: f64,
    /// What the denominator's deviation is multiplied by, at least 0.
    pub z: f64,
}

impl Split {
    /// `√q numerator + z denominator`, from what each of them costs at one standard deviation;
    /// `root_nu = √ν`.
    pub fn root(&self, numerator: f64, denominator: f64, root_nu: f64) -> f64 {
        self.cap.min(1.0 + self.kappa / root_nu).sqrt() * numerator + self.z * denominator
    }
}
