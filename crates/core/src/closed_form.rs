//! Budgets that follow from a few statistics by a formula, for machines that cannot call an
//! estimator.

use crate::{Assumptions, Kind, Size};

/// What a [`Estimator`](crate::Estimator) computes, in full: whoever has the statistics
/// can compute it too.
#[derive(Clone, Debug, PartialEq)]
pub enum ClosedForm {
    /// A fixed number of tokens, whatever the sample says: drawn at once, and nothing is promised.
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

/// `√b = min over splits of [√q s / ε + z s_D]`, with `s` of the numerator and `s_D` of the
/// denominator, what is not known of each at one draw; then less, as the residual is finite, and
/// rounded up.
///
/// Both follow from deviations that the sample shows, or from `B`, the largest `e` that an untaken
/// token can have, which selectors prove.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    /// What `s` is.
    pub numerator: Numerator,
    /// What `s_D` is.
    pub denominator: Denominator,
    /// The error allowed, relative to the estimate.
    pub epsilon: f64,
    /// Ways to divide the failure probability; the cheapest counts.
    pub splits: Vec<Split>,
    /// What is made of the residual's end.
    pub population: Population,
    /// By how many of their own standard errors variances are raised,
    /// [`SampleStats::raised`](crate::SampleStats::raised); 0 for none.
    pub allowance: f64,
}

/// How far the numerator may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerator {
    /// `n_s √Tr Cov(w) / |N^|`, the error of the output itself.
    Output,
    /// `n_s √Tr Cov(e v) / |N^|`.
    Estimated,
    /// `n_s B max|v| / |N^|`.
    Bounded,
}

/// How far the denominator may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denominator {
    /// `n_s σ / D`, as estimated.
    Estimated,
    /// `n_s B / D`; the denominator is as estimated.
    Bounded,
    /// `n_s B / D_f`, which is known before anything is drawn: `D_f` is the certain tokens' part of
    /// `D`.
    Proved,
}

/// How the budget `b0` for an infinite population becomes one out of `n_s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Population {
    /// It stays as it is.
    Infinite,
    /// `b0 / (1 + b0 / n_s)`, which is right for variances.
    Finite,
    /// The least `b` that is at least `b0 (1 − (b − 1) / n_s)`, or, beyond `n_s / 2`,
    /// `b0 (1 − b / n_s) (1 + 1 / b)`: Serfling's, which is right for ranges.
    Serfling,
}

/// One way to divide the failure probability between numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// The most that `q` is, whatever the spectrum; 0 if the numerator does not count.
    pub cap: f64,
    /// `q = min(cap, 1 + kappa / √ν)`, ν being the effective rank.
    pub kappa: f64,
    /// What `s_D` is multiplied by, at least 0.
    pub z: f64,
}

impl Formula {
    /// Whether it follows from what selectors prove of the tokens that they leave.
    pub fn needs_bound(&self) -> bool {
        self.numerator == Numerator::Bounded || self.denominator != Denominator::Estimated
    }

    /// Whether it follows from a sample; if not, from the certain tokens alone.
    pub fn needs_sample(&self) -> bool {
        let numerator_counts = self.splits.iter().any(|split| split.cap > 0.0);
        numerator_counts || self.denominator != Denominator::Proved
    }
}

impl Split {
    /// `√q numerator + z denominator`, from what each of them costs by itself; `root_nu = √ν`.
    pub fn root(&self, numerator: f64, denominator: f64, root_nu: f64) -> f64 {
        self.cap.min(1.0 + self.kappa / root_nu).sqrt() * numerator + self.z * denominator
    }
}
