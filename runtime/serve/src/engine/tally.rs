//! Sums over decode steps, for the usage of a job and for the metrics of its pipeline.

use vattention_core::RowReport;
use vattention_llm::{LayerReport, mean_density};

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
    let (rows_with_promise, held_rows) = count_promises(reports);
    PipelineMetrics {
        steps: 1,
        density_sum: mean_density(reports).unwrap_or(1.0),
        rows: rows_with_promise,
        held_rows,
        barred_rows: rows(reports).filter_map(bar).count() as u64,
        bar_sum: rows(reports).filter_map(bar).sum(),
    }
}

/// Returns the report of one step of a model with `kv_heads` KV heads.
pub(super) fn report_step(reports: &[LayerReport], kv_heads: usize) -> StepReport {
    let (rows, held_rows) = count_promises(reports);
    let density = |report: &LayerReport| match report.window {
        None => groups(report, kv_heads).map(group_density).collect(),
        Some(_) => vec![1.0; kv_heads],
    };
    let bar = |report: &LayerReport| match report.window {
        None => groups(report, kv_heads).map(largest_bar).collect(),
        Some(_) => vec![Some(0.0); kv_heads],
    };
    StepReport {
        density: reports.iter().map(density).collect(),
        bar: reports.iter().map(bar).collect(),
        held: (rows > 0).then(|| held_rows as f32 / rows as f32),
    }
}

/// Returns the rows of the query heads of each KV head.
fn groups(report: &LayerReport, kv_heads: usize) -> impl Iterator<Item = &[RowReport]> {
    report.rows.chunks_exact(report.rows.len() / kv_heads)
}

/// Returns the share of the visible tokens that the query heads of a KV head read together.
fn group_density(rows: &[RowReport]) -> f32 {
    rows[0].density_of_group() as f32
}

/// Returns the largest error bar of some rows; `None` if one of them has none.
fn largest_bar(rows: &[RowReport]) -> Option<f32> {
    let bars: Option<Vec<f64>> = rows.iter().map(bar).collect();
    bars?.into_iter().reduce(f64::max).map(|bar| bar as f32)
}

/// Returns the number of rows with a promise, and of those whose certificate states that it held.
fn count_promises(reports: &[LayerReport]) -> (u64, u64) {
    let promised = || rows(reports).filter(|row| row.certificate.promise.is_some());
    let held = promised().filter(|row| row.certificate.held).count();
    (promised().count() as u64, held as u64)
}

fn rows(reports: &[LayerReport]) -> impl Iterator<Item = &RowReport> {
    reports.iter().flat_map(|report| &report.rows)
}

/// Returns the radius of a row's error bar, if it is finite.
fn bar(row: &RowReport) -> Option<f64> {
    row.certificate.bar.map(|bar| bar.radius).filter(|radius| radius.is_finite())
}
