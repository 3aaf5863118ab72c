//! What `vattention evaluate` prints.

use std::path::Path;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use vattention_evaluate::{Asked, Report, Setup};

use crate::numbers::{percent, short};

/// What was asked of which model.
pub(super) fn title(model: &Path, report: &Report) -> String {
    let setup = match report.setup {
        Setup::A => "setup a: the prompt is read densely",
        Setup::B => "setup b: the context is read densely",
    };
    let contexts: Vec<String> = report.contexts.iter().map(ToString::to_string).collect();
    format!(
        "{}, {setup}, {} tokens, {} cases of each task, backend {}",
        model.display(),
        contexts.join(" and "),
        report.cases,
        report.backend
    )
}

pub(super) fn show(title: &str, report: &Report) -> String {
    let mut parts = vec![title.to_owned()];
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
set       what was set so that the pipeline reads the share asked for
error     |out - dense| / |dense| over rows: query heads of all layers at all steps by the pipeline
broken    rows whose error of what is promised exceeded epsilon; allowed is a share of delta";

/// Accuracy on each task at one length.
fn accuracy(report: &Report, place: usize, context: usize) -> String {
    let mut table = table();
    let heads = report.tasks.iter().map(String::as_str);
    table.set_header(["accuracy in %", "read", "mean"].into_iter().chain(heads));
    let count = report.tasks.len();
    for asked in &report.contenders {
        let scores = &asked.scores[place * count..][..count];
        let mean = scores.iter().map(|score| score.accuracy).sum::<f64>() / count as f64;
        let all = [mean].into_iter().chain(scores.iter().map(|score| score.accuracy));
        let cells = [asked.name.clone(), percent(asked.density)];
        let scores = all.map(|share| format!("{:.1}", 100.0 * share));
        table.add_row(cells.into_iter().chain(scores));
    }
    align(&mut table);
    match report.contexts.len() {
        1 => table.to_string(),
        _ => format!("{context} tokens\n{table}"),
    }
}

/// How far attention was from dense.
fn attention(report: &Report) -> String {
    let mut table = table();
    table.set_header(["attention", "set", "error mean", "max", "broken", "allowed", "rows"]);
    for asked in &report.contenders {
        table.add_row(cells(asked));
    }
    align(&mut table);
    table.to_string()
}

fn cells(asked: &Asked) -> [String; 7] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let share = |share: f64| format!("{:.2} %", 100.0 * share);
    let broken = asked.broken.map(|rows| share(rows as f64 / asked.rows.max(1) as f64));
    [
        asked.name.clone(),
        or_dash(asked.set.clone()),
        or_dash(asked.error.map(short)),
        or_dash(asked.largest_error.map(short)),
        or_dash(broken),
        or_dash(asked.delta.map(share)),
        asked.rows.to_string(),
    ]
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
