//! Scores of a report, for its tables.

use vattention_evaluate::{EvaluationReport, TaskScore, VariantResult};

/// Returns a variant's scores on each task at one length.
pub(super) fn scores_at<'a>(
    report: &EvaluationReport,
    variant: &'a VariantResult,
    place: usize,
) -> &'a [TaskScore] {
    let count = report.tasks.len();
    &variant.scores[place * count..][..count]
}

/// Formats a share in percent, without the sign.
pub(super) fn points(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}
