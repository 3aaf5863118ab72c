//! Report of one layer's step.

use std::time::Duration;

use vattention_core::{
    Output, RowReport,
    engine::{Selection, Timings},
};

/// Report of one layer at one step: the tokens it read, the error bound, and the time.
#[derive(Clone, Debug)]
pub struct LayerReport {
    /// Reports of the query heads.
    pub rows: Vec<RowReport>,
    /// Tokens that were read, if
    /// [`Options::return_selection`](vattention_core::Options::return_selection) is set.
    pub selection: Option<Selection>,
    /// Time for appending the token's key and value, and for attention.
    pub time: Duration,
    /// Time of each stage, if [`Options::timed`](vattention_core::Options::timed) is set.
    pub timings: Option<Timings>,
}

impl LayerReport {
    /// Report of an attention step that took `time`.
    pub(crate) fn new(output: Output, time: Duration) -> Self {
        Self { rows: output.rows, selection: output.selection, time, timings: output.timings }
    }

    /// Share of the visible tokens that were read, averaged over KV heads.
    pub fn density(&self) -> f64 {
        self.mean(RowReport::density_of_group)
    }

    /// Number of sampled tokens, averaged over query heads.
    pub fn sampled(&self) -> f64 {
        self.mean(|row| row.sampled as f64)
    }

    /// Returns true if the certificates of all query heads hold.
    pub fn held(&self) -> bool {
        self.rows.iter().all(|row| row.certificate.held)
    }

    /// Mean over query heads. For a value that the query heads of a KV head share, it equals the
    /// mean over KV heads.
    fn mean(&self, value: impl Fn(&RowReport) -> f64) -> f64 {
        self.rows.iter().map(value).sum::<f64>() / self.rows.len() as f64
    }
}
