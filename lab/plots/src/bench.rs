//! Plot of the time and the density of a decode step against the number of tokens.

use vattention_experiments::{BenchReport, BenchRow, named};

use crate::axis::Axis;
use crate::figure::{Figure, Panel, Series};

/// Plots milliseconds and density of a step against the tokens in the cache, all logarithmic, as
/// SVG. Each pipeline has a line, and each pair of a number of threads and a number format has a
/// row of panels.
pub fn bench(report: &BenchReport) -> String {
    let mut settings: Vec<(usize, &str)> = Vec::new();
    for row in &report.rows {
        let setting = (row.threads, row.dtype.as_str());
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    let several = settings.len() > 1;
    let panels = settings.into_iter().flat_map(|(threads, dtype)| {
        let plural = if threads == 1 { "" } else { "s" };
        let title =
            if several { format!("{dtype}, {threads} thread{plural}") } else { String::new() };
        let belongs = |row: &&BenchRow| row.threads == threads && row.dtype == dtype;
        let rows: Vec<&BenchRow> = report.rows.iter().filter(belongs).collect();
        let panel = |y: Axis, measure: fn(&BenchRow) -> f64| Panel {
            title: title.clone(),
            x: Axis::log("tokens"),
            y,
            series: lines(&rows, measure),
            level: None,
        };
        [
            panel(Axis::log("ms for a step of a layer"), |row| row.ms),
            panel(Axis::log("share of the tokens read").in_percent(), |row| row.density),
        ]
    });
    let trace = report.trace.as_ref().map_or(String::new(), |trace| format!(", heads of {trace}"));
    let title = format!("{}, backend {}{trace}", report.machine.name(), report.backend);
    Figure { title, columns: 2, panels: panels.collect() }.svg()
}

/// Returns a line for each pipeline and each of its densities, in the order of their measurement.
fn lines(rows: &[&BenchRow], measure: fn(&BenchRow) -> f64) -> Vec<Series> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let name = &row.pipeline;
        let name = row.asked_density.map_or_else(|| name.clone(), |share| named(name, share));
        let i = lines.iter().position(|(other, _)| *other == name).unwrap_or(lines.len());
        if i == lines.len() {
            lines.push((name, Vec::new()));
        }
        // Pipelines are measured in groups, each with its own run of dense attention; the first one
        // is plotted.
        let (points, tokens) = (&mut lines[i].1, row.tokens as f64);
        if points.iter().all(|&(x, _)| x != tokens) {
            points.push((tokens, measure(row)));
        }
    }
    lines.iter().map(|(name, points)| Series::line(name, points.clone())).collect()
}
