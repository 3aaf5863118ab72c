//! Tables of query heads.

use comfy_table::{CellAlignment, Table, presets};
use vattention::experiments::{Count, Evidence, HeadCount, Verification, binomial};

/// Heads shown, those with most violations first.
const SHOWN: usize = 8;

const COUNTS: [&str; 7] =
    ["layer", "query head", "violated", "rate", "95 % bound", "p-value", "evidence"];

const EVERYTHING: [&str; 13] = [
    "layer",
    "query head",
    "sampled",
    "read",
    "error mean",
    "p95",
    "violated",
    "rate",
    "p-value",
    "evidence",
    "nu",
    "kurtosis",
    "held",
];

const LEGEND: &str = "\
sampled   tokens drawn at random, mean over samples
read      share of the visible tokens read
error     of the promised target, mean and 95th percentile over samples
violated  samples whose error exceeded epsilon
evidence  what they say of delta: their share is \"within delta\", or \"above delta\", which may be chance,
          or delta is \"contradicted\": the p-value is below the limit
nu        effective rank of the covariance of w = e (v - o) over the whole residual, mean over queries
kurtosis  of w over the whole residual, mean over queries; 1 if it is as long everywhere
held      samples that the last check found large enough";

/// The heads that violated the promise most often; before them all layers, if it is about all heads of
/// one together.
pub(super) fn worst(verdict: &Verification) -> String {
    let mut heads: Vec<&HeadCount> = verdict.heads.iter().collect();
    heads.sort_by_key(|head| std::cmp::Reverse(head.violations));
    let steps = verdict.steps.iter().map(|step| counts(verdict, Count::from(step)));
    let heads_shown = heads.iter().take(SHOWN).map(|head| counts(verdict, Count::from(*head)));
    let shown = table(COUNTS, steps.chain(heads_shown));
    match heads.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}\n ... and {more} heads with fewer or as many"),
    }
}

/// All heads, with everything that is known of them.
pub(super) fn all(verdict: &Verification) -> String {
    let heads = table(EVERYTHING, verdict.heads.iter().map(|head| everything(verdict, head)));
    let steps = if verdict.steps.is_empty() {
        String::new()
    } else {
        let steps = verdict.steps.iter().map(|step| counts(verdict, Count::from(step)));
        format!("{}\n\n", table(COUNTS, steps))
    };
    let of = |evidence| {
        let own = verdict.heads.iter().filter(|head| verdict.evidence_of(*head) == evidence);
        let names: Vec<String> =
            own.map(|head| format!("layer {} head {}", head.layer, head.query_head)).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    };
    let (above, contradicted) = (of(Evidence::AboveDelta), of(Evidence::Contradicted));
    format!(
        "{steps}{heads}\n\n{LEGEND}\n\nheads above delta: {above}\nheads that contradict it: \
         {contradicted}"
    )
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

fn counts(verdict: &Verification, count: Count) -> [String; 7] {
    let Count { layer, query_head, violations, trials, p_value, .. } = count;
    [
        layer.to_string(),
        query_head.map_or_else(|| "any".into(), |head| head.to_string()),
        format!("{violations} of {trials}"),
        format!("{:.4}", violations as f64 / trials as f64),
        format!("{:.4}", binomial::upper_bound(violations, trials, 0.05)),
        format!("{p_value:.1e}"),
        verdict.evidence_of(count).to_string(),
    ]
}

fn everything(verdict: &Verification, head: &HeadCount) -> [String; 13] {
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
        verdict.evidence_of(head).to_string(),
        one_decimal(head.nu),
        one_decimal(head.kurtosis),
        format!("{:.1} %", 100.0 * head.held as f64 / trials),
    ]
}
