//! Report of one row of attention.

use crate::promise::Certificate;

/// Numbers of tokens that one query head read at one step, and its certificate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowReport {
    /// Number of tokens that the row may read.
    pub visible: usize,
    /// Number of tokens that were always read: picks, and drawn tokens of a non-uniform sample
    /// whose inclusion probability is 1.
    pub certain: usize,
    /// Number of the other tokens read, which were drawn from the residual.
    pub sampled: usize,
    /// Number of distinct tokens that the query heads of this KV head read together at this step.
    pub read_by_group: usize,
    /// Sample size that the estimator required at the last check, if there was one.
    pub budget: Option<usize>,
    /// True if every token was read because that is faster than reading a long token list.
    pub fell_back: bool,
    /// True if a selector picks every token because it learns from the last queries of a prompt and
    /// has not received any ([`Attention::observe`](crate::engine::Attention::observe)).
    pub unobserved: bool,
    /// Upper bound on the change of the target by the rounding of keys and values, relative to the
    /// norm of the estimate; `None` unless the promise or the error bar
    /// [counts rounding](crate::promise::ReferenceRows::Unrounded).
    pub rounding: Option<f64>,
    /// Promise and error bar of this row.
    pub certificate: Certificate,
}

impl RowReport {
    /// Share of the visible tokens that this query head read.
    pub fn density(&self) -> f64 {
        (self.certain + self.sampled) as f64 / self.visible as f64
    }

    /// Share of the visible tokens that this KV head's query heads read together.
    pub fn density_of_group(&self) -> f64 {
        self.read_by_group as f64 / self.visible as f64
    }
}
