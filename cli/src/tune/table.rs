//! Table of the best settings.

use vattention::PipelineConfig;
use vattention::experiments::{Best, Tried, Tuning, TuningScore};

use crate::numbers::{percent, short};
use crate::table::{self, Column, or_dash};

/// Formats settings: `selectors.2.page = 16, share = head`.
pub(crate) fn format_settings(settings: &[(String, String)]) -> String {
    let settings = settings.iter().map(|(key, value)| format!("{key} = {value}"));
    settings.collect::<Vec<_>>().join(", ")
}

/// Formats the settings of a candidate, with selectors by name and the setting of a search:
/// `quest.page = 16; size 0.031`.
pub(crate) fn settings(tried: &Tried) -> String {
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

fn columns(found: &Tuning) -> Vec<Column<'_, Best>> {
    let tried = |best: &Best| best.tried.map(|number| &found.tried[number]);
    let chosen = move |cell: fn(&TuningScore) -> String| {
        move |best: &Best| or_dash(tried(best).map(|tried| cell(&tried.score)))
    };
    let held_out = |cell: fn(&TuningScore) -> String| {
        move |best: &Best| or_dash(best.held_out.as_ref().map(cell))
    };
    let density = |score: &TuningScore| percent(score.density);
    let error = |score: &TuningScore| short(score.error);
    let violated = |score: &TuningScore| or_dash(score.violations.map(|it| it.to_string()));
    let nearest = |number: usize| {
        let Tried { score, .. } = &found.tried[number];
        let place = format!("reads {}, errs {}", percent(score.density), short(score.error));
        format!("nearest {place}: {}", settings(&found.tried[number]))
    };
    let mut columns = vec![
        Column::<Best>::text("method", "", |best| best.method.clone()),
        Column::<Best>::text(
            "at",
            "goal: `density` is the least error at a density of at most this (2 % more is \
             accepted); `error` is the least density at a mean error of at most this; `front` \
             means that no other settings have both a smaller density and a smaller error",
            |best| best.goal.map_or_else(|| "front".into(), |goal| goal.to_string()),
        ),
        Column::<Best>::new(
            "read",
            "share of the visible tokens that a KV head's query heads read together, mean over \
             rows; - if no settings meet the goal: `best settings` then shows the nearest",
            chosen(density),
        ),
        Column::<Best>::new("error", "|out - exact| / |exact|, mean over rows", chosen(error)),
        Column::<Best>::new(
            "violated",
            "rows (or steps, if the promise is about them) that violated a promise",
            chosen(violated),
        ),
    ];
    if !found.held_out.is_empty() {
        columns.extend([
            Column::<Best>::new("held out: read", "", held_out(density)),
            Column::<Best>::new("error", "", held_out(error)),
            Column::<Best>::new("violated", "", held_out(violated)),
        ]);
    }
    columns.push(Column::<Best>::text("best settings", "", move |best| {
        let none = || best.nearest.map_or_else(String::new, nearest);
        tried(best).map_or_else(none, settings)
    }));
    columns
}
