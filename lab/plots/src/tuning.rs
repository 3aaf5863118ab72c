//! Plot of the best settings of methods: error against density.

use vattention_experiments::{BestCandidate, Tuning, TuningScore};

use crate::axis::Axis;
use crate::figure::{Figure, Panel, Series};

/// Plots the mean error of each method's best settings against their density, both logarithmic, as
/// SVG.
///
/// A panel shows the traces on which settings were chosen, and another one the held-out traces, if
/// there are any. A line joins the settings of a method.
pub fn tuning(found: &Tuning) -> String {
    let chosen = |best: &BestCandidate| best.tried.map(|number| found.tried[number].score);
    let mut panels = vec![panel(found, "where settings were chosen", chosen)];
    if found.best.iter().any(|best| best.held_out.is_some()) {
        panels.push(panel(found, "held out", |best| best.held_out));
    }
    let title = "the best settings of each method".into();
    Figure { title, columns: panels.len(), panels }.svg()
}

fn panel(
    found: &Tuning,
    title: &str,
    score: impl Fn(&BestCandidate) -> Option<TuningScore>,
) -> Panel {
    let mut methods: Vec<&str> = Vec::new();
    for best in &found.best {
        if !methods.contains(&&best.method[..]) {
            methods.push(&best.method);
        }
    }
    let series = |method: &&str| {
        let best = found.best.iter().filter(|best| best.method == *method);
        let mut points: Vec<(f64, f64)> =
            best.filter_map(&score).map(|score| (score.density, score.error)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series::line(method, points)
    };
    Panel {
        title: title.into(),
        x: Axis::log("share of the tokens read, per KV head").in_percent(),
        y: Axis::log("mean |out - exact| / |exact|"),
        series: methods.iter().map(series).filter(|series| !series.points.is_empty()).collect(),
        level: None,
    }
}
