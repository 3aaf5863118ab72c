//! Verdict in words.

use vattention::experiments::{
    CountTest, Evidence, EvidenceCounts, HeadFault, JudgedRows, LEVEL, PromiseTest, PromiseVerdict,
    RowsTogether, SUSPICION, TrialCount, UnitsViolated, Verification,
};
use vattention::{
    Goal, Scope,
    plugin::{Assumption, ReferenceRows},
};

use crate::numbers::{few_digits, short};

/// Returns the promise, its assumptions, and the results of all tests.
pub(super) fn text(verdict: &Verification) -> String {
    let Verification { pipeline, violations, .. } = verdict;
    let (rate, violated, trials) = (violations.share(), violations.violated, violations.checked);
    let samples = samples(verdict);
    let lines = [
        format!("{pipeline}: {}", promise(verdict)),
        format_assumptions(verdict),
        bars(verdict),
        format!("{violated} of {trials} {samples} violated the promise, a rate of {rate:.4}"),
        evidence(verdict),
        worst(judged(verdict), &verdict.worst, &verdict.test),
        worst("row", &verdict.worst_row, &verdict.row_test),
        format_rows_together(verdict),
        coverage(&verdict.row_coverage),
        format_verdict(verdict),
    ];
    lines.join("\n")
}

/// Returns the unit that is tested over all queries.
fn judged(verdict: &Verification) -> &'static str {
    match verdict.goal.scope {
        Scope::Row => "head",
        Scope::Step => "layer",
    }
}

/// Returns the name of the counted items.
fn samples(verdict: &Verification) -> &'static str {
    match verdict.goal.scope {
        Scope::Row => "samples",
        Scope::Step => "steps",
    }
}

/// Formats the promise: `Pr(error of sdpa > 0.1) <= 0.1, for each query head`.
fn promise(verdict: &Verification) -> String {
    let Goal { target, delta, scope, reference, .. } = verdict.goal;
    let (epsilon, limit) = (verdict.goal.epsilon(), verdict.goal.limit());
    let judged = match scope {
        Scope::Row => "each query head",
        Scope::Step => "all query heads of a layer together",
    };
    let least = epsilon.map_or_else(|| "its error bar".into(), |epsilon| few_digits(epsilon.get()));
    let limited = if limit.is_some() { "; its error bar where the limit is too small" } else { "" };
    let rows = match reference {
        ReferenceRows::Stored => "stored rows",
        ReferenceRows::Unrounded => "unrounded rows",
    };
    format!(
        "Pr(error of {target} > {least}) <= {}, for {judged}{limited}; relative to attention over \
         {rows}",
        delta.get()
    )
}

/// Formats the error bars: `error bars: 0.081 on average, 0.1 at most; ...`.
fn bars(verdict: &Verification) -> String {
    let bars = &verdict.bars;
    let Some(outside) = bars.share_outside() else { return "error bars: none".into() };
    let widths = bars.mean.map_or_else(String::new, |mean| {
        format!("{} on average, {} at most; ", short(mean), short(bars.widest))
    });
    let unbounded = match bars.unbounded {
        0 => String::new(),
        count => format!(", {count} of them without a bound"),
    };
    let evidence = match bars.evidence {
        Some(Evidence::Contradicted) => ", which contradicts delta in some head",
        Some(Evidence::AboveDelta) => ", above delta in some head, perhaps by chance",
        _ => ", within delta in every head",
    };
    format!(
        "error bars: {widths}the error exceeds its bar in {:.2} % of {} samples of a head that did \
         not read all tokens{unbounded}{evidence}",
        100.0 * outside,
        bars.rows
    )
}

/// Formats the kind of the certificates, their assumptions, and the share that is not held.
fn format_assumptions(verdict: &Verification) -> String {
    let Verification { kind, assumes, not_held, .. } = verdict;
    let sentence = |assumption: Assumption| format!("\n  {assumption}: {}", assumption.sentence());
    let sentences: String = assumes.iter().map(sentence).collect();
    let not_held = format!("not held: {:.1} % of the samples of a head", 100.0 * not_held);
    format!("kind {kind}, assuming: {assumes}{sentences}\n{not_held}")
}

/// Formats the evidence: `8 heads: 6 within delta, 2 above delta, 0 contradict it`.
fn evidence(verdict: &Verification) -> String {
    let EvidenceCounts { within_delta, above_delta, contradicted } = verdict.evidence;
    let (total, unit) = (within_delta + above_delta + contradicted, judged(verdict));
    format!(
        "{total} {unit}s: {within_delta} within delta, {above_delta} above delta, {contradicted} \
         contradict it"
    )
}

/// Formats the count with the smallest p-value, and the limit of its test.
fn worst(what: &str, count: &TrialCount, test: &CountTest) -> String {
    let TrialCount { layer, violations, trials, p_value, .. } = count;
    let head = count.query_head.map_or_else(String::new, |head| format!(", query head {head}"));
    let query = count.query.map_or_else(String::new, |query| format!(", query {query}"));
    format!(
        "worst {what}: layer {layer}{head}{query}: {violations} of {trials} (p-value \
         {p_value:.1e}, limit {:.1e})",
        test.limit
    )
}

/// Formats the test of rows together: `rows together: 90 of 1000 rows violated in ...`.
fn format_rows_together(verdict: &Verification) -> String {
    let RowsTogether { limit, worst, .. } = verdict.rows_together;
    match worst {
        None => "rows together: no violation".into(),
        Some(worst) => format!(
            "rows together: {} (p-value {:.1e}, limit {limit:.1e})",
            units_violated(verdict, &worst),
            worst.p_value
        ),
    }
}

/// Formats a result of the test of rows together: the number of rows, lists or steps with at least
/// a number of violations, and the number that delta allows.
fn units_violated(verdict: &Verification, worst: &UnitsViolated) -> String {
    let RowsTogether { units, heads, samples, .. } = verdict.rows_together;
    let UnitsViolated { at_least, units: violated, allowed, .. } = *worst;
    let units = match (verdict.goal.scope, heads) {
        (Scope::Row, 0 | 1) => format!("{units} rows"),
        (Scope::Row, _) => format!("{units} lists of {heads} rows have a row that"),
        (Scope::Step, _) => format!("{units} steps"),
    };
    let share = if at_least == samples { "all".into() } else { format!("at least {at_least}") };
    format!(
        "{violated} of {units} violated in {share} of their {samples} samples; at most {allowed} \
         expected at {LEVEL:e}"
    )
}

/// Formats the number of rows that are judged: `rows: 576 judged by themselves`.
fn coverage(coverage: &JudgedRows) -> String {
    let JudgedRows { judged, unjudged, least_samples, least_trials } = coverage;
    match unjudged {
        0 => format!("rows: {judged} judged by themselves"),
        _ => format!(
            "rows: {judged} judged by themselves, {unjudged} not, with fewer than {least_samples} \
             samples; --trials {least_trials} would judge all"
        ),
    }
}

/// Formats the verdict, with its reasons or the rates that would contradict delta.
fn format_verdict(verdict: &Verification) -> String {
    let delta = verdict.goal.delta.get();
    match verdict.verdict {
        PromiseVerdict::Held => {
            format!("held: nothing contradicts delta = {delta}\n{}", detectable(verdict))
        }
        PromiseVerdict::Undecided => format!(
            "undecided: nothing contradicts delta = {delta}, but {}\n{}",
            doubts(verdict).join("; "),
            detectable(verdict)
        ),
        PromiseVerdict::Contradicted => {
            let tests: Vec<String> =
                verdict.contradicted_by.iter().map(|&test| finding(verdict, test)).collect();
            let fault = verdict.fault.map_or_else(String::new, |fault| {
                format!("\nwhat fails: {}", format_fault(&fault, verdict))
            });
            format!("contradicted: delta = {delta}, by {}{fault}", tests.join("; by "))
        }
    }
}

/// Returns the reasons for which a promise that no test contradicts is not called held.
fn doubts(verdict: &Verification) -> Vec<String> {
    let suspected = verdict.suspected_by.iter().map(|&test| {
        let finding = finding(verdict, test);
        format!("{finding} has a probability below {SUSPICION} if the promise is kept")
    });
    let unjudged = match verdict.row_coverage.unjudged {
        0 => None,
        count => Some(format!("{count} rows have too few samples to contradict it")),
    };
    suspected.chain(unjudged).collect()
}

/// Formats the finding of a test against a promise.
fn finding(verdict: &Verification, test: PromiseTest) -> String {
    let describe = |kind: &str, count: &TrialCount| {
        format!("a {kind} violated in {} of its {} samples", count.violations, count.trials)
    };
    match test {
        PromiseTest::Pooled => describe(judged(verdict), &verdict.worst),
        PromiseTest::Row => describe("row", &verdict.worst_row),
        PromiseTest::RowsTogether => {
            let worst = verdict.rows_together.worst;
            let numbers = worst.map(|worst| units_violated(verdict, &worst));
            format!("rows together, {}", numbers.unwrap_or_default())
        }
    }
}

/// Formats the smallest rates that would have contradicted delta.
fn detectable(verdict: &Verification) -> String {
    let pooled = detectable_rate(&verdict.test, samples(verdict), judged(verdict));
    let row = detectable_rate(&verdict.row_test, samples(verdict), "row");
    format!("would contradict delta: {pooled}; {row}; smaller rates with more --trials")
}

/// Formats a detectable rate: `a rate of 0.137 or more (273) in 2000 samples of a head`.
fn detectable_rate(test: &CountTest, samples: &str, unit: &str) -> String {
    let least = test.contradicted_from.zip(test.rate);
    let rate = least.map_or_else(
        || "no rate".into(),
        |(count, rate)| format!("a rate of {rate:.3} or more ({count})"),
    );
    format!("{rate} in {} {samples} of a {unit}", test.trials)
}

/// Formats the most frequent fault in the worst head's failing samples.
fn format_fault(fault: &HeadFault, verdict: &Verification) -> String {
    let HeadFault { layer, query_head, cause, share } = fault;
    let named = cause.assumptions().iter().any(|assumption| verdict.assumes.contains(assumption));
    let unnamed = if named { "" } else { "; no certificate names it" };
    format!(
        "{cause} (in {:.0} % of the failing samples of layer {layer}, query head \
         {query_head}{unnamed})",
        100.0 * share
    )
}
