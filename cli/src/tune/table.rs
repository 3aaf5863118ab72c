//! What was found, as a table.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use vattention::PipelineConfig;
use vattention::experiments::{Best, Tried, Tuning, TuningScore};

use crate::numbers::{percent, short};

/// `selectors.2.page = 16, share = head`
pub(crate) fn written(settings: &[(String, String)]) -> String {
    let settings = settings.iter().map(|(key, value)| format!("{key} = {value}"));
    settings.collect::<Vec<_>>().join(", ")
}

/// The settings with selectors by name, and what a search set: `quest.page = 16, size 0.031`.
pub(crate) fn settings(tried: &Tried) -> String {
    let named =
        tried.settings.iter().map(|(key, value)| (named(key, &tried.pipeline), value.clone()));
    let mut text = written(&named.collect::<Vec<_>>());
    if let Some(set) = &tried.set {
        text = if text.is_empty() { set.clone() } else { format!("{text}; {set}") };
    }
    text
}

/// `quest.page` for `selectors.2.page`, if that is a `quest`.
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
    let held_out = !found.held_out.is_empty();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let more = held_out.then_some(["held out: read", "error", "violated"]).into_iter().flatten();
    table.set_header(
        ["method", "at", "read", "error", "violated"]
            .into_iter()
            .chain(more)
            .chain(["best settings"]),
    );
    for best in &found.best {
        table.add_row(cells(found, best, held_out));
    }
    for column in table.column_iter_mut().skip(2).take(if held_out { 6 } else { 3 }) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let tried = found.tried.len();
    let queries: Vec<String> = found.queries.iter().map(usize::to_string).collect();
    let texts = |files: &[String]| files.join(", ");
    let chosen = format!(
        "settings chosen on {}, backend {}: {tried} candidates, {} queries of each layer\n",
        texts(&found.traces),
        found.backend,
        queries.join(", then ")
    );
    let shown =
        if held_out { format!("held out: {}\n", texts(&found.held_out)) } else { String::new() };
    format!("{chosen}{shown}\n{table}\n\n{LEGEND}")
}

const LEGEND: &str = "\
at        what settings are the best for: a density, the least error of what reads at most that share (up to
          2 % more of it); an error, the least read of what errs at most so much; front, nothing beats them
read      share of the visible tokens that a KV head's query heads read together, mean over rows
error     |out - exact| / |exact|, mean over rows
violated  rows (or steps, if the promise is about them) that violated a promise
-         nothing meets it; of what comes nearest, `best settings` tells";

fn cells(found: &Tuning, best: &Best, held_out: bool) -> Vec<String> {
    let goal = best.goal.map_or_else(|| "front".into(), |goal| goal.to_string());
    let mut cells = vec![best.method.clone(), goal];
    let one = best.tried.map(|number| &found.tried[number]);
    cells.extend(scores(one.map(|one| &one.score)));
    if held_out {
        cells.extend(scores(best.held_out.as_ref()));
    }
    let nearest = |number: usize| {
        let Tried { score, .. } = &found.tried[number];
        let place = format!("reads {}, errs {}", percent(score.density), short(score.error));
        format!("nearest {place}: {}", settings(&found.tried[number]))
    };
    cells.push(one.map_or_else(|| best.nearest.map_or_else(String::new, nearest), settings));
    cells
}

fn scores(score: Option<&TuningScore>) -> [String; 3] {
    let Some(score) = score else { return ["-", "-", "-"].map(Into::into) };
    let violated = score.violations.map(|counts| counts.to_string());
    [percent(score.density), short(score.error), violated.unwrap_or_else(|| "-".into())]
}
