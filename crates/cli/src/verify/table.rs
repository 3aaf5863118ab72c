//! Tables of query heads.

use comfy_table::{CellAlignment, Table, presets};
use vattention::eval::{HeadCount, StepCount, Verification, binomial};

/// Heads shown, those with most violations first.
const SHOWN: usize = 8;

const COUNTS: [&str; 6] = ["layer", "query head", "broken", "rate", "95 % bound", "p-value"];

const EVERYTHING: [&str; 12] = [
    "layer",
    "query head",
    "sampled",
    "read",
    "error mean",
    "p95",
    "broken",
    "rate",
    "p-value",
    "nu",
    "kurtosis",
    "held",
];

const LEGEND: &str = "\
sampled   tokens drawn at random, mean over samples
read      share of the visible tokens read
error     of the promised target, mean and 95th percentile over samples
broken    samples whose error exceeded epsilon
nu        effective rank of the covariance of w = e (v - o) over the whole residual, mean over queries
kurtosis  of w over the whole residual, mean over queries; 1 if it is as long everywhere
held      samples that the last look found large enough";

/// The heads that broke the promise most often; before them all layers, if it is about all heads of
/// one together.
pub(super) fn worst(verdict: &Verification) -> String {
    let mut heads: Vec<&HeadCount> = verdict.heads.iter().collect();
    heads.sort_by_key(|head| std::cmp::Reverse(head.violations));
    let steps = verdict.steps.iter().map(step_counts);
    let shown = table(COUNTS, steps.chain(heads.iter().take(SHOWN).map(|head| head_counts(head))));
    match heads.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}\n ... and {more} heads with fewer or as many"),
    }
}

/// All heads, with everything that is known of them.
pub(super) fn all(verdict: &Verification) -> String {
    let heads = table(EVERYTHING, verdict.heads.iter().map(everything));
    let steps = match verdict.steps.len() {
        0 => String::new(),
        _ => format!("{}\n\n", table(COUNTS, verdict.steps.iter().map(step_counts))),
    };
    let breaking = verdict.heads.iter().filter(|head| head.p_value < verdict.limit());
    let breaking: Vec<String> =
        breaking.map(|head| format!("layer {} head {}", head.layer, head.query_head)).collect();
    let named = if breaking.is_empty() { "none".into() } else { breaking.join(", ") };
    format!("{steps}{heads}\n\n{LEGEND}\n\nheads that break the promise: {named}")
}

fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn head_counts(head: &HeadCount) -> [String; 6] {
    let place = [head.layer.to_string(), head.query_head.to_string()];
    counts(place, head.violations, head.trials, head.p_value)
}

fn step_counts(step: &StepCount) -> [String; 6] {
    counts([step.layer.to_string(), "any".into()], step.violations, step.trials, step.p_value)
}

fn counts(
    [layer, head]: [String; 2],
    violations: usize,
    trials: usize,
    p_value: f64,
) -> [String; 6] {
    [
        layer,
        head,
        format!("{violations} of {trials}"),
        format!("{:.4}", violations as f64 / trials as f64),
        format!("{:.4}", binomial::upper_bound(violations, trials, 0.05)),
        format!("{p_value:.1e}"),
    ]
}

fn everything(head: &HeadCount) -> [String; 12] {
    let trials = head.trials as f64;
    let one_decimal = |x: Option<f64>| x.map_or_else(|| "-".into(), |x| format!("{x:.1}"));
    [
        head.layer.to_string(),
        head.query_head.to_string(),
        format!("{:.0}", head.sampled),
        format!("{:.1} %", 100.0 * head.density),
        format!("{:.4}", head.error.mean),
        format!("{:.4}", head.error.p95),
        head.violations.to_string(),
        format!("{:.4}", head.violations as f64 / trials),
        format!("{:.1e}", head.p_value),
        one_decimal(head.nu),
        one_decimal(head.kurtosis),
        format!("{:.1} %", 100.0 * head.held as f64 / trials),
    ]
}
