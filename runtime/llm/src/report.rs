//! Report of one layer's step.

use std::time::Duration;

use vattention_core::{
    Output, RowReport,
    engine::{Selection, Timings},
};

use crate::LayerWindow;
use crate::prefill::mean;

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
    /// Window of a sliding layer, which reads all tokens of its window whatever the pipeline;
    /// `None` for full layers, which follow the pipeline.
    pub window: Option<LayerWindow>,
}

/// Mean density over full layers, and 1 if all layers slide; `None` without reports.
pub fn mean_density(reports: &[LayerReport]) -> Option<f64> {
    let full = reports.iter().filter(|report| report.is_full());
    let all = (!reports.is_empty()).then_some(1.0);
    mean(full.map(LayerReport::density)).or(all)
}

impl LayerReport {
    /// Report of an attention step that took `time`.
    pub(crate) fn new(output: Output, time: Duration, window: Option<LayerWindow>) -> Self {
        let Output { rows, selection, timings, .. } = output;
        Self { rows, selection, time, timings, window }
    }

    /// Returns true if the layer follows the pipeline, false if it slides.
    pub fn is_full(&self) -> bool {
        self.window.is_none()
    }

    /// Share of the tokens that the model lets the layer see, those of its window if it slides,
    /// that were read, averaged over KV heads.
    pub fn density(&self) -> f64 {
        let first = |row: &RowReport| self.window.map_or(0, |it| it.first(row.visible - 1));
        self.mean(|row| row.read_by_group as f64 / (row.visible - first(row)) as f64)
    }

    /// Number of sampled tokens, averaged over query heads.
    pub fn sampled(&self) -> f64 {
        self.mean(|row| row.sampled as f64)
    }

    /// Returns true if the certificates of all query heads hold. Those of sliding layers do: their
    /// outputs are exact.
    pub fn held(&self) -> bool {
        !self.is_full() || self.rows.iter().all(|row| row.certificate.held)
    }

    /// Mean over query heads. For a value that the query heads of a KV head share, it equals the
    /// mean over KV heads.
    fn mean(&self, value: impl Fn(&RowReport) -> f64) -> f64 {
        self.rows.iter().map(value).sum::<f64>() / self.rows.len() as f64
    }
}
