//! Table of the best settings.

use vattention::PipelineConfig;
use vattention::experiments::{BestCandidate, TriedCandidate, Tuning, TuningScore};

use crate::numbers::{percent, short};
use crate::table::{self, Column, or_dash};

/// Formats settings: `selectors.2.page = 16, share = head`.
pub(crate) fn format_settings(settings: &[(String, String)]) -> String {
    let settings = settings.iter().map(|(key, value)| format!("{key} = {value}"));
    settings.collect::<Vec<_>>().join(", ")
}

/// Formats the settings of a candidate, with selectors by name and the setting of a search:
/// `quest.page = 16; size 0.031`.
pub(crate) fn settings(tried: &TriedCandidate) -> String {
    let named =
        tried.settings.iter().map(|(key, value)| (named(key, &tried.pipeline), value.clone()));
    let mut text = format_settings(&named.collect::<Vec<_>>());
    if let Some(set) = &tried.set {
        text = if text.is_empty() { set.clone() } else { format!("{text}; {set}") };
    }
    text
}

/// Replaces a selector's number by its name: `quest.page` for `selectors.2.page`.
fn named(key: &str, pipeline: &PipelineConfig) -> String {
    let name = || {
        let (number, field) = key.strip_prefix("selectors.")?.split_once('.')?;
        let selector = pipeline.selectors.get(number.parse::<usize>().ok()?)?;
        let value = serde_json::to_value(selector).ok()?;
        Some(format!("{}.{field}", value["type"].as_str()?))
    };
    name().unwrap_or_else(|| key.into())
}

pub(crate) fn table(found: &Tuning) -> String {
    let tried = found.tried.len();
    let queries: Vec<String> = found.queries.iter().map(usize::to_string).collect();
    let chosen = format!(
        "settings chosen on {}, backend {}: {tried} candidates, {} queries of each layer\n",
        found.traces.join(", "),
        found.backend,
        queries.join(", then ")
    );
    let held_out = if found.held_out.is_empty() {
        String::new()
    } else {
        format!("held out: {}\n", found.held_out.join(", "))
    };
    format!("{chosen}{held_out}\n{}", table::show(&columns(found), &found.best))
}

fn columns(found: &Tuning) -> Vec<Column<'_, BestCandidate>> {
    let tried = |best: &BestCandidate| best.tried.map(|number| &found.tried[number]);
    let chosen = move |cell: fn(&TuningScore) -> String| {
        move |best: &BestCandidate| or_dash(tried(best).map(|tried| cell(&tried.score)))
    };
    let held_out = |cell: fn(&TuningScore) -> String| {
        move |best: &BestCandidate| or_dash(best.held_out.as_ref().map(cell))
    };
    let density = |score: &TuningScore| percent(score.density);
    let error = |score: &TuningScore| short(score.error);
    let violated = |score: &TuningScore| or_dash(score.violations.map(|it| it.to_string()));
    let nearest = |number: usize| {
        let TriedCandidate { score, .. } = &found.tried[number];
        let (density, error) = (percent(score.density), short(score.error));
        format!("nearest (read {density}, error {error}): {}", settings(&found.tried[number]))
    };
    let mut columns = vec![
        Column::<BestCandidate>::text("method", "", |best| best.method.clone()),
        Column::<BestCandidate>::text(
            "at",
            "goal: `density` is the least error at a density of at most this (2 % more is \
             accepted); `error` is the least density at a mean error of at most this; `front` \
             means that no other settings have both a smaller density and a smaller error",
            |best| best.goal.map_or_else(|| "front".into(), |goal| goal.to_string()),
        ),
        Column::<BestCandidate>::new(
            "read",
            "share of the visible tokens that a KV head's query heads read together, mean over \
             rows; - if no settings meet the goal: `best settings` then shows the nearest",
            chosen(density),
        ),
        Column::<BestCandidate>::new(
            "error",
            "|out - exact| / |exact|, mean over rows",
            chosen(error),
        ),
        Column::<BestCandidate>::new(
            "violated",
            "rows (or steps, if the promise is about them) that violated a promise",
            chosen(violated),
        ),
    ];
    if !found.held_out.is_empty() {
        columns.extend([
            Column::<BestCandidate>::new("held out: read", "", held_out(density)),
            Column::<BestCandidate>::new("error", "", held_out(error)),
            Column::<BestCandidate>::new("violated", "", held_out(violated)),
        ]);
    }
    columns.push(Column::<BestCandidate>::text("best settings", "", move |best| {
        let none = || best.nearest.map_or_else(String::new, nearest);
        tried(best).map_or_else(none, settings)
    }));
    columns
}
