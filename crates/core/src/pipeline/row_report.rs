//! Report of one row of attention.

use crate::promise::Certificate;

/// What one query head read at one step, and its certificate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowReport {
    /// Tokens that the row may read.
    pub visible: usize,
    /// Tokens that were picked.
    pub certain: usize,
    /// Tokens that were drawn from the residual.
    pub sampled: usize,
    /// Distinct rows that the query heads of this KV head read together at this step.
    pub read_by_group: usize,
    /// Tokens that the estimator asked for at the last check.
    pub budget: Option<usize>,
    /// Whether everything was read because that is faster than a long list.
    pub fell_back: bool,
    /// True if a selector picks everything because it learns from the last queries of a prompt and
    /// has been shown none ([`Attention::observe`](crate::engine::Attention::observe)).
    pub unobserved: bool,
    /// What is promised for this row.
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
