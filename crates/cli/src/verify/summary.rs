//! The verdict in words.

use vattention::eval::{Fault, RowCount, Verification};
use vattention::{Assumption, Scope};

/// What was promised on what grounds, and how it fared.
pub(super) fn text(verdict: &Verification) -> String {
    let Verification { pipeline, violations, trials, .. } = verdict;
    let rate = *violations as f64 / *trials as f64;
    format!(
        "{pipeline}: {}\n{}\n{violations} of {trials} {} broke the promise, a rate of {rate:.4}\n\
         {}\n{}",
        promise(verdict),
        grounds(verdict),
        match verdict.promise.scope {
            Scope::Row => "samples",
            Scope::Step => "steps",
        },
        worst_row(&verdict.worst_row),
        answer(verdict)
    )
}

/// `Pr(error of sdpa > 0.1, floor 0.05) <= 0.1, for each query head`
fn promise(verdict: &Verification) -> String {
    let promise = &verdict.promise;
    let (epsilon, delta) = (promise.epsilon.get(), promise.delta.get());
    let floor = promise.floor.map_or_else(String::new, |floor| format!(", floor {}", floor.get()));
    let judged = match promise.scope {
        Scope::Row => "each query head",
        Scope::Step => "all query heads of a layer together",
    };
    format!("Pr(error of {} > {epsilon}{floor}) <= {delta}, for {judged}", promise.target)
}

fn grounds(verdict: &Verification) -> String {
    let Verification { kind, assumes, not_held, .. } = verdict;
    let sentence = |assumption: Assumption| format!("\n  {assumption}: {}", assumption.sentence());
    let sentences: String = assumes.iter().map(sentence).collect();
    let not_held = format!("not held: {:.1} % of the samples of a head", 100.0 * not_held);
    format!("kind {kind}, taking for granted: {assumes}{sentences}\n{not_held}")
}

fn worst_row(row: &RowCount) -> String {
    let RowCount { layer, query, violations, trials, p_value, .. } = row;
    let head = row.query_head.map_or_else(String::new, |head| format!("query head {head}, "));
    format!(
        "worst row: layer {layer}, {head}query {query}: {violations} of {trials} (p-value \
         {p_value:.1e})"
    )
}

fn answer(verdict: &Verification) -> String {
    let delta = verdict.promise.delta.get();
    let judged = match verdict.promise.scope {
        Scope::Row => "head",
        Scope::Step => "layer",
    };
    let (p_value, limit) = (verdict.p_value, verdict.limit());
    let numbers = format!("(smallest p-value of a {judged} {p_value:.1e}, limit {limit:.1e})");
    match &verdict.fault {
        None => format!("held: no {judged} and no row contradicts delta = {delta} {numbers}"),
        Some(fault) => {
            let fails = fails(fault, verdict);
            format!("broken: delta = {delta} is contradicted {numbers}\nwhat fails: {fails}")
        }
    }
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
