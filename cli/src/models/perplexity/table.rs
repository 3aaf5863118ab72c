//! Table of `vattention perplexity`.

use std::path::Path;

use vattention::experiments::BlockMean;
use vattention_evaluate::{PerplexityReport, PipelinePerplexity};

use crate::numbers::{percent, short};
use crate::table::{self, Column, or_dash};

/// Minimum number of windows for a reliable interval.
const ENOUGH_WINDOWS: usize = 10;

/// Row of the table.
enum PerplexityRow<'r> {
    Dense { perplexity: f64 },
    Pipeline(&'r PipelinePerplexity),
}

impl PerplexityRow<'_> {
    /// Formats a number of a pipeline; dense attention has none.
    fn show(&self, cell: impl FnOnce(&PipelinePerplexity) -> Option<String>) -> String {
        match self {
            PerplexityRow::Dense { .. } => or_dash(None),
            PerplexityRow::Pipeline(pipeline) => or_dash(cell(pipeline)),
        }
    }
}

/// Returns the report of a model on a text.
pub(super) fn show(model: &Path, text: &Path, report: &PerplexityReport) -> String {
    let dense = PerplexityRow::Dense { perplexity: report.dense_perplexity };
    let rows: Vec<PerplexityRow<'_>> = std::iter::once(dense)
        .chain(report.pipelines.iter().map(PerplexityRow::Pipeline))
        .collect();
    let mut parts = vec![title(model, text, report), table::show(&columns(), &rows)];
    parts.extend(advise(report));
    parts.join("\n\n")
}

fn title(model: &Path, text: &Path, report: &PerplexityReport) -> String {
    let PerplexityReport { window, dense_prefix, scored_tokens, scored_windows, .. } = report;
    let plural = if *scored_windows == 1 { "" } else { "s" };
    format!(
        "{}, {}: {scored_tokens} tokens scored in {scored_windows} window{plural} of {window} \
         tokens, the first {dense_prefix} of each read densely, backend {}",
        model.display(),
        text.display(),
        report.backend
    )
}

fn columns<'a, 'r>() -> Vec<Column<'a, PerplexityRow<'r>>> {
    vec![
        Column::text("pipeline", "", |row: &PerplexityRow<'_>| match row {
            PerplexityRow::Dense { .. } => "dense attention".into(),
            PerplexityRow::Pipeline(pipeline) => pipeline.pipeline.clone(),
        }),
        Column::new(
            "read",
            "share of the visible tokens that a KV head's query heads read together, dense layers \
             included",
            |row: &PerplexityRow<'_>| row.show(|it| Some(percent(it.density))),
        ),
        Column::new("perplexity", "", |row: &PerplexityRow<'_>| {
            let perplexity = match row {
                PerplexityRow::Dense { perplexity } => *perplexity,
                PerplexityRow::Pipeline(pipeline) => pipeline.perplexity,
            };
            format!("{perplexity:.4}")
        }),
        Column::new(
            "to dense",
            "log-likelihood of a token minus that with dense attention, in nats: mean, and 95 % \
             confidence interval from the means of the windows (Student's)",
            |row: &PerplexityRow<'_>| row.show(|it| Some(format_difference(&it.to_dense))),
        ),
        Column::new(
            "KL",
            "Kullback-Leibler divergence of the next token's distribution from that of dense \
             attention, mean in nats",
            |row: &PerplexityRow<'_>| row.show(|it| Some(short(it.kl_divergence))),
        ),
        Column::new(
            "same top",
            "share of the positions with the same most likely token as dense attention",
            |row: &PerplexityRow<'_>| row.show(|it| Some(percent(it.same_top))),
        ),
        Column::new(
            "held",
            "share of the rows with a promise whose certificate states that the promise held",
            |row: &PerplexityRow<'_>| row.show(|it| it.held.map(percent)),
        ),
        Column::new(
            "bar",
            "largest finite error bar of a row: bound on the relative error at confidence 1 - \
             delta",
            |row: &PerplexityRow<'_>| row.show(|it| it.largest_bar.map(short)),
        ),
    ]
}

/// Formats a mean difference, with its interval if there is one.
fn format_difference(difference: &BlockMean) -> String {
    let mean = difference.mean;
    match difference.interval {
        Some(interval) => format!("{mean:+.4} ({:+.4} to {:+.4})", interval.low, interval.high),
        None => format!("{mean:+.4}"),
    }
}

/// Returns remarks on an interruption, and on an interval of few windows.
fn advise(report: &PerplexityReport) -> Option<String> {
    let (scored, all) = (report.scored_windows, report.windows);
    let mut lines = Vec::new();
    if scored < all {
        lines.push(format!("interrupted after {scored} of {all} windows"));
    }
    let advice = "a longer text, more --text-tokens or a smaller --window makes more windows";
    if scored < 2 {
        lines.push(format!("1 window is too few for an interval; {advice}"));
    } else if scored < ENOUGH_WINDOWS {
        lines.push(format!(
            "{scored} windows are few: the interval relies on normally distributed means of \
             windows; {advice}"
        ));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}
