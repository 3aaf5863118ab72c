//! The verdict in words.

use vattention::experiments::{Count, CountTest, EvidenceCounts, Fault, Verification};
use vattention::{Demand, Scope, plugin::Assumption};

use crate::numbers::short;

/// What was promised on what grounds, and how it fared.
pub(super) fn text(verdict: &Verification) -> String {
    let Verification { pipeline, violations, trials, .. } = verdict;
    let rate = *violations as f64 / *trials as f64;
    format!(
        "{pipeline}: {}\n{}\n{}\n{violations} of {trials} {} violated the promise, a rate of {rate:.4}\n\
         {}\n{}\n{}\n{}",
        promise(verdict),
        grounds(verdict),
        bars(verdict),
        samples(verdict),
        evidence(verdict),
        worst(judged(verdict), &verdict.worst, &verdict.test),
        worst("row", &verdict.worst_row, &verdict.row_test),
        answer(verdict)
    )
}

/// What a promise is judged by, over all queries.
fn judged(verdict: &Verification) -> &'static str {
    match verdict.demand.scope {
        Scope::Row => "head",
        Scope::Step => "layer",
    }
}

/// What is tried.
fn samples(verdict: &Verification) -> &'static str {
    match verdict.demand.scope {
        Scope::Row => "samples",
        Scope::Step => "steps",
    }
}

/// `Pr(error of sdpa > 0.1, floor 0.05) <= 0.1, for each query head`
fn promise(verdict: &Verification) -> String {
    let Demand { target, delta, floor, scope, epsilon, limit, .. } = verdict.demand;
    let floor = floor.map_or_else(String::new, |floor| format!(", floor {}", floor.get()));
    let judged = match scope {
        Scope::Row => "each query head",
        Scope::Step => "all query heads of a layer together",
    };
    let least = epsilon.map_or_else(|| "its error bar".into(), |epsilon| epsilon.get().to_string());
    let limited =
        if limit.is_some() { "; its error bar where the limit does not suffice" } else { "" };
    format!("Pr(error of {target} > {least}{floor}) <= {}, for {judged}{limited}", delta.get())
}

/// `error bars: 0.081 on average, 0.1 at most; the truth is outside in 0.4 % of 18000 samples`
fn bars(verdict: &Verification) -> String {
    let bars = &verdict.bars;
    let Some(outside) = bars.share_outside() else { return "error bars: none".into() };
    let widths = bars.mean().map_or_else(String::new, |mean| {
        format!("{} on average, {} at most; ", short(mean), short(bars.widest))
    });
    let unbounded = match bars.unbounded {
        0 => String::new(),
        count => format!(", {count} of them without a bound"),
    };
    format!(
        "error bars: {widths}the truth is outside in {:.2} % of {} samples of a head{unbounded}",
        100.0 * outside,
        bars.rows
    )
}

fn grounds(verdict: &Verification) -> String {
    let Verification { kind, assumes, not_held, .. } = verdict;
    let sentence = |assumption: Assumption| format!("\n  {assumption}: {}", assumption.sentence());
    let sentences: String = assumes.iter().map(sentence).collect();
    let not_held = format!("not held: {:.1} % of the samples of a head", 100.0 * not_held);
    format!("kind {kind}, taking for granted: {assumes}{sentences}\n{not_held}")
}

/// `8 heads: 6 within delta, 2 above delta, 0 contradict it`
fn evidence(verdict: &Verification) -> String {
    let EvidenceCounts { within_delta, above_delta, contradicted } = verdict.evidence;
    format!(
        "{} {}s: {within_delta} within delta, {above_delta} above delta, {contradicted} contradict it",
        within_delta + above_delta + contradicted,
        judged(verdict)
    )
}

/// The count with the smallest p-value, and the limit that it is judged by.
fn worst(what: &str, count: &Count, test: &CountTest) -> String {
    let Count { layer, violations, trials, p_value, .. } = count;
    let head = count.query_head.map_or_else(String::new, |head| format!(", query head {head}"));
    let query = count.query.map_or_else(String::new, |query| format!(", query {query}"));
    format!(
        "worst {what}: layer {layer}{head}{query}: {violations} of {trials} (p-value {p_value:.1e}, \
         limit {:.1e})",
        test.limit
    )
}

fn answer(verdict: &Verification) -> String {
    let delta = verdict.demand.delta.get();
    match &verdict.fault {
        None => {
            let of_all = visible(&verdict.test, samples(verdict), judged(verdict));
            let of_row = visible(&verdict.row_test, samples(verdict), "row");
            format!(
                "held: nothing contradicts delta = {delta}\n\
                 would contradict it: {of_all}; {of_row}; less with more --trials"
            )
        }
        Some(fault) => {
            let fails = fails(fault, verdict);
            format!("violated: delta = {delta} is contradicted\nwhat fails: {fails}")
        }
    }
}

/// `a rate of 0.137 or more (273) in 2000 samples of a head`
fn visible(test: &CountTest, samples: &str, of: &str) -> String {
    let least = test.contradicted_from.zip(test.rate);
    let rate = least.map_or_else(
        || "no rate".into(),
        |(count, rate)| format!("a rate of {rate:.3} or more ({count})"),
    );
    format!("{rate} in {} {samples} of a {of}", test.trials)
}

fn fails(fault: &Fault, verdict: &Verification) -> String {
    let Fault { layer, query_head, cause, share } = fault;
    let named = cause.assumptions().iter().any(|assumption| verdict.assumes.contains(assumption));
    let unnamed = if named { "" } else { "; no certificate names it" };
    format!(
        "{cause} (in {:.0} % of the failing samples of layer {layer}, query head \
         {query_head}{unnamed})",
        100.0 * share
    )
}
