//! Sums over decode steps, for the usage of a job and for the metrics of its pipeline.

use vattention_core::RowReport;
use vattention_llm::LayerReport;

use super::{JobUsage, PipelineMetrics, StepReport};

/// Sums over the decode steps of one sequence.
#[derive(Debug, Default)]
pub(super) struct UsageTally {
    sums: PipelineMetrics,
    largest_bar: Option<f64>,
}

impl UsageTally {
    /// Adds a step, and returns the sums over this step alone.
    pub(super) fn add(&mut self, reports: &[LayerReport]) -> PipelineMetrics {
        let step = step_sums(reports);
        self.sums.add(&step);
        self.largest_bar = rows(reports).filter_map(bar).chain(self.largest_bar).reduce(f64::max);
        step
    }

    /// Writes the statistics of the attention into the usage of a job.
    pub(super) fn write_to(&self, usage: &mut JobUsage) {
        let PipelineMetrics { steps, density_sum, rows, held_rows, .. } = self.sums;
        usage.read = (steps > 0).then(|| density_sum / steps as f64);
        usage.held = (rows > 0).then(|| held_rows as f64 / rows as f64);
        usage.largest_bar = self.largest_bar;
    }
}

impl PipelineMetrics {
    pub(super) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.density_sum += other.density_sum;
        self.rows += other.rows;
        self.held_rows += other.held_rows;
        self.barred_rows += other.barred_rows;
        self.bar_sum += other.bar_sum;
    }
}

/// Returns the sums over one step.
fn step_sums(reports: &[LayerReport]) -> PipelineMetrics {
    let density: f64 = reports.iter().map(LayerReport::density).sum();
    let promised = || rows(reports).filter(|row| row.certificate.promise.is_some());
    PipelineMetrics {
        steps: 1,
        density_sum: density / reports.len() as f64,
        rows: promised().count() as u64,
        held_rows: promised().filter(|row| row.certificate.held).count() as u64,
        barred_rows: rows(reports).filter_map(bar).count() as u64,
        bar_sum: rows(reports).filter_map(bar).sum(),
    }
}

/// Returns the report of one step of a model with `kv_heads` KV heads.
pub(super) fn report_step(reports: &[LayerReport], kv_heads: usize) -> StepReport {
    let sums = step_sums(reports);
    let groups = |report: &LayerReport| -> Vec<Vec<RowReport>> {
        let group = report.rows.len() / kv_heads;
        report.rows.chunks_exact(group).map(<[_]>::to_vec).collect()
    };
    let density = |rows: Vec<RowReport>| rows[0].density_of_group() as f32;
    let largest_bar = |rows: Vec<RowReport>| {
        let bars: Option<Vec<f64>> = rows.iter().map(bar).collect();
        bars?.into_iter().reduce(f64::max).map(|bar| bar as f32)
    };
    StepReport {
        density: reports.iter().map(|it| groups(it).into_iter().map(density).collect()).collect(),
        bar: reports.iter().map(|it| groups(it).into_iter().map(largest_bar).collect()).collect(),
        held: (sums.rows > 0).then(|| sums.held_rows as f32 / sums.rows as f32),
    }
}

fn rows(reports: &[LayerReport]) -> impl Iterator<Item = &RowReport> {
    reports.iter().flat_map(|report| &report.rows)
}

/// Returns the radius of a row's error bar, if it is finite.
fn bar(row: &RowReport) -> Option<f64> {
    row.certificate.bar.map(|bar| bar.radius).filter(|radius| radius.is_finite())
}
