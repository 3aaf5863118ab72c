//! Tables of query heads.

use vattention::experiments::{Evidence, HeadCount, TrialCount, Verification, binomial};

use crate::numbers::percent;
use crate::table::{self, Column, or_dash};

/// Maximum number of heads that are shown, beginning with the most violations.
const SHOWN: usize = 8;

/// Returns a table of the heads that violated the promise most often. Under scope `step`, all
/// layers are shown before them.
pub(super) fn worst(verdict: &Verification) -> String {
    let mut heads: Vec<&HeadCount> = verdict.heads.iter().collect();
    heads.sort_by_key(|head| std::cmp::Reverse(head.violations));
    let steps = verdict.steps.iter().map(TrialCount::from);
    let heads_shown = heads.iter().take(SHOWN).map(|head| TrialCount::from(*head));
    let counts: Vec<TrialCount> = steps.chain(heads_shown).collect();
    let shown = table::rows(&columns_of_counts(verdict), &counts);
    match heads.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}\n ... and {more} more heads with no more violations"),
    }
}

/// Returns a table of all heads with all columns.
pub(super) fn all(verdict: &Verification) -> String {
    let heads = table::show(&columns_of_heads(verdict), &verdict.heads);
    let steps: Vec<TrialCount> = verdict.steps.iter().map(TrialCount::from).collect();
    let steps = if steps.is_empty() {
        String::new()
    } else {
        format!("{}\n\n", table::rows(&columns_of_counts(verdict), &steps))
    };
    let name_heads = |evidence| {
        let heads = verdict.heads.iter().filter(|head| verdict.evidence_of(*head) == evidence);
        let names: Vec<String> =
            heads.map(|head| format!("layer {} head {}", head.layer, head.query_head)).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    };
    let above = name_heads(Evidence::AboveDelta);
    let contradicted = name_heads(Evidence::Contradicted);
    format!(
        "{steps}{heads}\n\nheads above delta: {above}\nheads that contradict it: {contradicted}"
    )
}

fn columns_of_counts(verdict: &Verification) -> Vec<Column<'_, TrialCount>> {
    vec![
        Column::<TrialCount>::new("layer", "", |count| count.layer.to_string()),
        Column::<TrialCount>::new("query head", "", |count| {
            count.query_head.map_or_else(|| "any".into(), |head| head.to_string())
        }),
        Column::<TrialCount>::new("violated", "", |count| {
            format!("{} of {}", count.violations, count.trials)
        }),
        Column::<TrialCount>::new("rate", "", |count| {
            format!("{:.4}", count.violations as f64 / count.trials as f64)
        }),
        Column::<TrialCount>::new("95 % bound", "", |count| {
            format!("{:.4}", binomial::upper_bound(count.violations, count.trials, 0.05))
        }),
        Column::<TrialCount>::new("p-value", "", |count| format!("{:.1e}", count.p_value)),
        Column::<TrialCount>::new("evidence", "", |count| verdict.evidence_of(*count).to_string()),
    ]
}

fn columns_of_heads(verdict: &Verification) -> Vec<Column<'_, HeadCount>> {
    let one_decimal = |x: Option<f64>| or_dash(x.map(|x| format!("{x:.1}")));
    vec![
        Column::<HeadCount>::new("layer", "", |head| head.layer.to_string()),
        Column::<HeadCount>::new("query head", "", |head| head.query_head.to_string()),
        Column::<HeadCount>::new("sampled", "sampled tokens, mean over samples", |head| {
            format!("{:.0}", head.sampled)
        }),
        Column::<HeadCount>::new("read", "share of the visible tokens read", |head| {
            percent(head.density)
        }),
        Column::<HeadCount>::new(
            "error mean",
            "error of the promised target, mean and 95th percentile over samples",
            |head| format!("{:.4}", head.error.mean),
        ),
        Column::<HeadCount>::new("p95", "", |head| format!("{:.4}", head.error.p95)),
        Column::<HeadCount>::new("violated", "samples whose error exceeded epsilon", |head| {
            head.violations.to_string()
        }),
        Column::<HeadCount>::new("rate", "", |head| {
            format!("{:.4}", head.violations as f64 / head.trials as f64)
        }),
        Column::<HeadCount>::new("p-value", "", |head| format!("{:.1e}", head.p_value)),
        Column::<HeadCount>::new(
            "evidence",
            "verdict on delta from the violations: their share is \"within delta\", or \"above \
             delta\", perhaps by chance, or delta is \"contradicted\": the p-value is below its \
             limit",
            |head| verdict.evidence_of(head).to_string(),
        ),
        Column::<HeadCount>::new(
            "nu",
            "effective rank of the covariance of w = e (v - o) over the whole residual, mean over \
             queries",
            move |head| one_decimal(head.nu),
        ),
        Column::<HeadCount>::new(
            "kurtosis",
            "kurtosis of w over the whole residual, mean over queries; 1 if w has constant norm",
            move |head| one_decimal(head.kurtosis),
        ),
        Column::<HeadCount>::new(
            "held",
            "samples that the last check found large enough",
            |head| percent(head.held as f64 / head.trials as f64),
        ),
    ]
}
