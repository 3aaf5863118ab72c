//! Tables of `vattention evaluate`.

use std::path::Path;

use vattention::Scope;
use vattention::experiments::{PairedDifference, ShareInterval, ViolationCount};
use vattention_evaluate::{
    EvaluationReport, Setup, VariantResult, effective_cases, mean_of_counted,
};
use vattention_llm::Strategy;

use super::details;
use super::scores::{points, scores_at};
use crate::models::answering::setup_name;
use crate::numbers::{percent, short};
use crate::table::{self, Column, or_dash};

/// Returns the title of the report: the model, the setup, and the number and lengths of cases.
pub(super) fn title(model: &Path, report: &EvaluationReport) -> String {
    let setup = setup_name(report.setup);
    let part = match report.setup {
        Setup::A => "prompt",
        Setup::B => "context",
    };
    let contexts: Vec<String> = report.contexts.iter().map(ToString::to_string).collect();
    let prompts = if report.published { "prompts of at most " } else { "" };
    let chat = if report.chat { ", as a chat" } else { "" };
    let prefill = match report.prefill.strategy {
        Strategy::Dense => "densely".to_owned(),
        strategy => format!("by {strategy}"),
    };
    format!(
        "{}, setup {setup}: the {part} is read {prefill}{chat}, {prompts}{} tokens, {}, backend {}",
        model.display(),
        contexts.join(" and "),
        cases(report),
        report.backend
    )
}

/// Formats the number of cases: `10 cases of each task`, or `2 to 10 cases of a task` if datasets
/// have different numbers.
fn cases(report: &EvaluationReport) -> String {
    let scores = report.variants.iter().flat_map(|variant| &variant.scores);
    let counts = || scores.clone().map(|score| score.cases);
    match (counts().min(), counts().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most} cases of a task"),
        (Some(1), _) => "1 case of each task".into(),
        (count, _) => format!("{} cases of each task", count.unwrap_or(report.cases)),
    }
}

pub(super) fn show(title: &str, report: &EvaluationReport) -> String {
    let mut parts = vec![title.to_owned()];
    if report.prefill.strategy != Strategy::Dense {
        let read = percent(report.prefill.density);
        parts.push(format!("prefill: {read} of the causal token-key pairs read"));
    }
    for (i, context) in report.contexts.iter().enumerate() {
        parts.push(accuracy(report, i, *context));
    }
    let attention = attention_columns(report);
    parts.push(table::rows(&attention, &report.variants));
    let legends = [table::legend(&accuracy_columns(report, 0)), table::legend(&attention)];
    parts.push(legends.join("\n"));
    parts.join("\n\n")
}

/// Returns a table of the accuracy on each task at one length.
fn accuracy(report: &EvaluationReport, place: usize, context: usize) -> String {
    let mut table = table::rows(&accuracy_columns(report, place), &report.variants);
    for other in details::tables(report, place) {
        table = format!("{table}\n\n{other}");
    }
    if report.contexts.len() > 1 {
        table = format!("{context} tokens\n{table}");
    }
    match left_out(report, place) {
        Some(tasks) => {
            format!("{table}\nleft out of the means, because the dense pipeline fails: {tasks}")
        }
        None => table,
    }
}

fn accuracy_columns(report: &EvaluationReport, place: usize) -> Vec<Column<'_, VariantResult>> {
    let scores = move |it: &VariantResult| scores_at(report, it, place).to_vec();
    let difference = move |it: &VariantResult| it.to_dense.get(place).copied().flatten();
    let mut columns = vec![
        Column::<VariantResult>::text("accuracy in %", "", |it| it.variant.clone()),
        Column::<VariantResult>::new(
            "read",
            "share of the visible tokens that a KV head's query heads read together, over all \
             steps with the pipeline, dense layers included",
            |it| or_dash(it.density.map(percent)),
        ),
        Column::<VariantResult>::new("mean", "", move |it| points(mean_of_counted(&scores(it)))),
        Column::<VariantResult>::new(
            "95 %",
            "confidence interval of the mean (Wilson's, for independent cases)",
            move |it| {
                let scores = scores(it);
                let mean = mean_of_counted(&scores);
                let ShareInterval { low, high } =
                    ShareInterval::new(mean, effective_cases(&scores));
                format!("{} to {}", points(low), points(high))
            },
        ),
        Column::<VariantResult>::new(
            "to dense",
            "mean difference from the dense pipeline's score in the same case, and its 95 % \
             confidence interval (Tango's, for paired shares)",
            move |it| or_dash(difference(it).map(signed_points)),
        ),
        Column::<VariantResult>::new(
            "p",
            "p-value of McNemar's exact test of the difference",
            move |it| or_dash(difference(it).map(|it| format!("{:.3}", it.p_value))),
        ),
        Column::<VariantResult>::new("n", "number of cases", move |it| {
            let cases = scores(it).iter().filter(|it| it.counts).map(|it| it.cases).sum::<usize>();
            cases.to_string()
        }),
    ];
    columns.extend(report.tasks.iter().enumerate().map(|(task, name)| {
        Column::<VariantResult>::new(name, "", move |it| points(scores(it)[task].accuracy))
    }));
    columns
}

/// Returns the tasks that are left out of the means at one length.
fn left_out(report: &EvaluationReport, place: usize) -> Option<String> {
    let scores = scores_at(report, report.variants.first()?, place).iter();
    let tasks: Vec<&str> =
        scores.filter(|score| !score.counts).map(|score| score.task.as_str()).collect();
    (!tasks.is_empty()).then(|| tasks.join(", "))
}

/// Formats a difference in percentage points: `+1.2 (-3.0 to +5.4)`.
fn signed_points(difference: PairedDifference) -> String {
    let PairedDifference { mean, low, high, .. } = difference;
    let [mean, low, high] = [mean, low, high].map(|share| format!("{:+.1}", 100.0 * share));
    format!("{mean} ({low} to {high})")
}

/// Returns columns of the error against dense attention.
fn attention_columns(report: &EvaluationReport) -> Vec<Column<'static, VariantResult>> {
    let share = |share: f64| format!("{:.2} %", 100.0 * share);
    let mut columns = vec![
        Column::<VariantResult>::text("attention", "", |it| it.variant.clone()),
        Column::<VariantResult>::new(
            "set",
            "setting with which the pipeline reads the share of --density",
            |it| or_dash(it.set.clone()),
        ),
        Column::<VariantResult>::new(
            "error mean",
            "|out - dense| / |dense| over rows: query heads of all layers at all steps with the \
             pipeline",
            |it| or_dash(it.error.map(short)),
        ),
        Column::<VariantResult>::new("max", "", |it| or_dash(it.largest_error.map(short))),
        Column::<VariantResult>::new(
            "bar",
            "error bar: bound on the relative error at confidence 1 - delta; mean over rows that \
             do not read all tokens",
            |it| or_dash(it.bars.mean.map(short)),
        ),
        Column::<VariantResult>::new(
            "outside",
            "share of these rows whose error exceeds its bar",
            move |it| or_dash(it.bars.share_outside().map(share)),
        ),
        Column::<VariantResult>::new(
            "bars",
            "verdict on delta from the number of rows outside, among all rows; same words as \
             `evidence`",
            |it| or_dash(it.bars.evidence.map(|evidence| evidence.to_string())),
        ),
        Column::<VariantResult>::new(
            "violated",
            "share of the rows whose error of the promised target exceeded epsilon; with scope \
             `step`, share of the steps (all query heads of a layer at one query) in which any \
             head exceeded it",
            move |it| or_dash(it.violations.map(|counts| share(counts.share()))),
        ),
        Column::<VariantResult>::new("allowed", "delta", move |it| {
            or_dash(it.promise.map(|promise| share(promise.delta.get())))
        }),
        Column::<VariantResult>::new(
            "evidence",
            "verdict on delta from the violations: \"within delta\"; \"above delta\", perhaps by \
             chance; or \"contradicted\": a probability below 1e-6 if the promise holds; query \
             heads that share a token list count as one, and lists count as independent",
            |it| or_dash(it.evidence.map(|evidence| evidence.to_string())),
        ),
        Column::<VariantResult>::new("of", "number of checked rows or steps", |it| {
            match it.violations {
                Some(ViolationCount { unit: Scope::Step, checked, .. }) => {
                    format!("{checked} steps")
                }
                _ => format!("{} rows", it.rows),
            }
        }),
    ];
    if report.variants.iter().any(|variant| variant.cases_without_rows > 0) {
        columns.push(Column::new(
            "no step",
            "cases whose answer ended before the pipeline took a step; not measured",
            |it: &VariantResult| it.cases_without_rows.to_string(),
        ));
    }
    columns
}
