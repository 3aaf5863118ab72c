//! What `vattention evaluate` prints.

use std::path::Path;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use vattention::Scope;
use vattention::experiments::{PairedDifference, ShareInterval, ViolationCount};
use vattention_evaluate::{
    Report, Setup, TaskScore, VariantResult, effective_cases, mean_of_counted,
};
use vattention_llm::Strategy;

use crate::numbers::{percent, short};

/// What was asked of which model.
pub(super) fn title(model: &Path, report: &Report) -> String {
    let (setup, part) = match report.setup {
        Setup::A => ("a", "prompt"),
        Setup::B => ("b", "context"),
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

/// `10 cases of each task`, or `2 to 10 cases of a task` where datasets have fewer.
fn cases(report: &Report) -> String {
    let scores = report.variants.iter().flat_map(|variant| &variant.scores);
    let counts = || scores.clone().map(|score| score.cases);
    match (counts().min(), counts().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most} cases of a task"),
        (Some(1), _) => "1 case of each task".into(),
        (count, _) => format!("{} cases of each task", count.unwrap_or(report.cases)),
    }
}

pub(super) fn show(title: &str, report: &Report) -> String {
    let mut parts = vec![title.to_owned()];
    if report.prefill.strategy != Strategy::Dense {
        let read = percent(report.prefill.density);
        parts.push(format!("prefill: {read} of the causal pairs of tokens and keys read"));
    }
    for (i, context) in report.contexts.iter().enumerate() {
        parts.push(accuracy(report, i, *context));
    }
    parts.push(attention(report));
    parts.push(LEGEND.to_owned());
    parts.join("\n\n")
}

const LEGEND: &str = "\
read      share of the visible tokens that a KV head's query heads read together, over all steps by
          the pipeline; dense layers count
95 %      interval of the mean (Wilson's; cases taken for independent)
to dense  the mean difference to the dense pipeline's score in the same case, and its 95 % interval
          (Tango's for paired shares); p is that of McNemar's exact test; n is the number of cases
set       what was set so that the pipeline reads the share asked for
error     |out - dense| / |dense| over rows: query heads of all layers at all steps by the pipeline
bar       the relative error that each row says is exceeded with probability delta at most: the mean over rows
          that are not read as a whole
outside   share of these rows whose error is larger
bars      evidence of the rows outside on delta, over all rows; as `evidence` for violations
violated  share of the rows whose error of what is promised exceeded epsilon; if the promise is about
          a step, of the steps: all query heads of a layer at one query, of which any may exceed it
evidence  what that says of the share allowed, delta: \"within delta\"; \"above delta\", which may be
          chance; or \"contradicted\": less probable than 1e-6 if the promise is kept; query heads
          that share a token list count as one, lists are taken for independent of each other
of        number of rows or steps that were checked
no step   cases whose answer ended before the pipeline took a step; not measured";

/// Accuracy on each task at one length.
fn accuracy(report: &Report, place: usize, context: usize) -> String {
    let mut table = table();
    let heads = report.tasks.iter().map(String::as_str);
    let own = ["accuracy in %", "read", "mean", "95 %", "to dense", "p", "n"];
    table.set_header(own.into_iter().chain(heads));
    for asked in &report.variants {
        let scores = scores_at(report, asked, place);
        let mean = mean_of_counted(scores);
        let ShareInterval { low, high } = ShareInterval::new(mean, effective_cases(scores));
        let difference = asked.to_dense.get(place).copied().flatten();
        let cases: usize = scores.iter().filter(|score| score.counts).map(|it| it.cases).sum();
        let cells = [
            asked.variant.clone(),
            or_dash(asked.density.map(percent)),
            points(mean),
            format!("{} to {}", points(low), points(high)),
            or_dash(difference.map(signed_points)),
            or_dash(difference.map(|it| format!("{:.3}", it.p_value))),
            cases.to_string(),
        ];
        let scores = scores.iter().map(|score| points(score.accuracy));
        table.add_row(cells.into_iter().chain(scores));
    }
    align(&mut table);
    let mut table = table.to_string();
    if let Some(others) = others(report, place) {
        table = format!("{table}\n\n{others}");
    }
    if report.contexts.len() > 1 {
        table = format!("{context} tokens\n{table}");
    }
    match left_out(report, place) {
        Some(tasks) => {
            format!("{table}\nleft out of the means, where the dense pipeline fails: {tasks}")
        }
        None => table,
    }
}

/// Scores at one length by the datasets' other metrics, if they have any.
fn others(report: &Report, place: usize) -> Option<String> {
    let of = |asked| {
        let scores = scores_at(report, asked, place).iter();
        scores.flat_map(|score| score.others.iter().map(move |other| (&score.task, other)))
    };
    let names: Vec<String> = of(report.variants.first()?)
        .map(|(task, other)| format!("{task}, {}", other.metric))
        .collect();
    if names.is_empty() {
        return None;
    }
    let columns: Vec<Vec<f64>> = report
        .variants
        .iter()
        .map(|asked| of(asked).map(|(_, other)| other.score).collect())
        .collect();
    let mut table = table();
    let pipelines = report.variants.iter().map(|asked| asked.variant.as_str());
    table.set_header(std::iter::once("by other metrics in %").chain(pipelines));
    for (row, name) in names.into_iter().enumerate() {
        let scores = columns.iter().map(|column| points(column[row]));
        table.add_row(std::iter::once(name).chain(scores));
    }
    align(&mut table);
    Some(table.to_string())
}

/// The tasks that do not count at one length.
fn left_out(report: &Report, place: usize) -> Option<String> {
    let scores = scores_at(report, report.variants.first()?, place).iter();
    let tasks: Vec<&str> =
        scores.filter(|score| !score.counts).map(|score| score.task.as_str()).collect();
    (!tasks.is_empty()).then(|| tasks.join(", "))
}

/// Of each task at one length.
fn scores_at<'a>(report: &Report, asked: &'a VariantResult, place: usize) -> &'a [TaskScore] {
    let count = report.tasks.len();
    &asked.scores[place * count..][..count]
}

/// `+1.2 (-3.0 to +5.4)`
fn signed_points(difference: PairedDifference) -> String {
    let PairedDifference { mean, low, high, .. } = difference;
    let [mean, low, high] = [mean, low, high].map(|share| format!("{:+.1}", 100.0 * share));
    format!("{mean} ({low} to {high})")
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

fn points(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

const ATTENTION: [&str; 11] = [
    "attention",
    "set",
    "error mean",
    "max",
    "bar",
    "outside",
    "bars",
    "violated",
    "allowed",
    "evidence",
    "of",
];

/// Distance of attention from dense attention.
fn attention(report: &Report) -> String {
    let mut table = table();
    let no_step = report.variants.iter().any(|variant| variant.cases_without_rows > 0);
    table.set_header(ATTENTION.into_iter().chain(no_step.then_some("no step")));
    for variant in &report.variants {
        table.add_row(cells(variant, no_step));
    }
    align(&mut table);
    table.to_string()
}

fn cells(asked: &VariantResult, no_step: bool) -> Vec<String> {
    let share = |share: f64| format!("{:.2} %", 100.0 * share);
    let of = match asked.violations {
        Some(ViolationCount { unit: Scope::Step, checked, .. }) => format!("{checked} steps"),
        _ => format!("{} rows", asked.rows),
    };
    let mut cells = vec![
        asked.variant.clone(),
        or_dash(asked.set.clone()),
        or_dash(asked.error.map(short)),
        or_dash(asked.largest_error.map(short)),
        or_dash(asked.bars.mean.map(short)),
        or_dash(asked.bars.share_outside().map(share)),
        or_dash(asked.bars.evidence.map(|evidence| evidence.to_string())),
        or_dash(asked.violations.map(|counts| share(counts.share()))),
        or_dash(asked.promise.map(|promise| share(promise.delta.get()))),
        or_dash(asked.evidence.map(|evidence| evidence.to_string())),
        of,
    ];
    if no_step {
        cells.push(asked.cases_without_rows.to_string());
    }
    cells
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
