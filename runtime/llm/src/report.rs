//! What a layer read at a step.

use std::time::Duration;

use vattention_core::{
    Output, RowReport,
    engine::{Selection, Timings},
};

/// What one layer read at one step, and what that is worth.
#[derive(Clone, Debug)]
pub struct LayerReport {
    /// One per query head.
    pub rows: Vec<RowReport>,
    /// The tokens read, if [`Options::return_selection`](vattention_core::Options::return_selection) is set.
    pub selection: Option<Selection>,
    /// Of adding the token's key and value, and of attending.
    pub time: Duration,
    /// Where the time went, if [`Options::timed`](vattention_core::Options::timed) is set.
    pub timings: Option<Timings>,
}

impl LayerReport {
    /// Of what attention has returned after so long.
    pub(crate) fn new(output: Output, time: Duration) -> Self {
        Self { rows: output.rows, selection: output.selection, time, timings: output.timings }
    }

    /// Share of the visible tokens that were read, as the mean over KV heads.
    pub fn density(&self) -> f64 {
        self.mean(RowReport::density_of_group)
    }

    /// Tokens read by chance, as the mean over query heads.
    pub fn sampled(&self) -> f64 {
        self.mean(|row| row.sampled as f64)
    }

    /// Whether every row's certificate holds.
    pub fn held(&self) -> bool {
        self.rows.iter().all(|row| row.certificate.held)
    }

    /// The mean over query heads, which is that over KV heads of what their query heads share.
    fn mean(&self, of: impl Fn(&RowReport) -> f64) -> f64 {
        self.rows.iter().map(of).sum::<f64>() / self.rows.len() as f64
    }
}
