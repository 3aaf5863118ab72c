//! Tables of scores by a dataset's other metrics and of its groups of cases.

use vattention_evaluate::{EvaluationReport, TaskScore};

use super::scores::{points, scores_at};
use crate::table::{self, Column};

/// Name of a row, the number of its cases, and its scores by the place of the variant.
struct DetailRow {
    name: String,
    cases: usize,
    scores: Vec<f64>,
}

/// Returns the tables of the datasets at one length that have other metrics or groups of cases.
pub(super) fn tables(report: &EvaluationReport, place: usize) -> impl Iterator<Item = String> {
    let by_metric = rows(report, place, |score| {
        let others = score.others.iter();
        others.map(|other| (other.metric.as_str(), score.cases, other.score)).collect()
    });
    let by_group = rows(report, place, |score| {
        let groups = score.groups.iter();
        groups.map(|group| (group.group.as_str(), group.cases, group.accuracy)).collect()
    });
    let tables = [("by other metrics in %", by_metric), ("by groups of cases in %", by_group)];
    let shown = tables.into_iter().filter(|(_, rows)| !rows.is_empty());
    shown.map(move |(title, rows)| show(report, title, &rows))
}

/// Returns a row for each of the parts of the tasks' scores: names, numbers of cases, and scores.
fn rows(
    report: &EvaluationReport,
    place: usize,
    parts: impl Fn(&TaskScore) -> Vec<(&str, usize, f64)>,
) -> Vec<DetailRow> {
    let mut rows: Vec<DetailRow> = Vec::new();
    for (number, variant) in report.variants.iter().enumerate() {
        let scores = scores_at(report, variant, place);
        let all = scores.iter().flat_map(|score| {
            parts(score).into_iter().map(move |part| (score.task.as_str(), part))
        });
        for (row, (task, (name, cases, score))) in all.enumerate() {
            if number == 0 {
                rows.push(DetailRow { name: format!("{task}, {name}"), cases, scores: Vec::new() });
            }
            rows[row].scores.push(score);
        }
    }
    rows
}

fn show(report: &EvaluationReport, title: &'static str, rows: &[DetailRow]) -> String {
    let mut columns = vec![Column::<DetailRow>::text(title, "", |row| row.name.clone())];
    for (number, variant) in report.variants.iter().enumerate() {
        columns.push(Column::new(&variant.variant, "", move |row: &DetailRow| {
            points(row.scores[number])
        }));
    }
    columns.push(Column::new("n", "", |row: &DetailRow| row.cases.to_string()));
    table::rows(&columns, rows)
}
