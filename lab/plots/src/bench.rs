//! What a step takes, and what it reads, against the number of tokens.

use vattention_experiments::{BenchReport, BenchRow, named};

use crate::axis::Axis;
use crate::figure::{Figure, Panel, Series};

/// A line for each pipeline over the tokens in the cache, as SVG: milliseconds of a step, and the share that is read, all
/// logarithmic; a row of panels for each number of threads and way to store numbers.
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
        let own = |row: &&BenchRow| row.threads == threads && row.dtype == dtype;
        let rows: Vec<&BenchRow> = report.rows.iter().filter(own).collect();
        let panel = |y: Axis, of: fn(&BenchRow) -> f64| Panel {
            title: title.clone(),
            x: Axis::log("tokens"),
            y,
            series: lines(&rows, of),
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

/// Of each pipeline, and of each density that it is made for, in the order in which they were measured.
fn lines(rows: &[&BenchRow], of: fn(&BenchRow) -> f64) -> Vec<Series> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let name = &row.pipeline;
        let name = row.asked_density.map_or_else(|| name.clone(), |share| named(name, share));
        let found = lines.iter().position(|(known, _)| *known == name).unwrap_or(lines.len());
        if found == lines.len() {
            lines.push((name, Vec::new()));
        }
        // Dense attention leads every group, and the first time counts.
        let (points, tokens) = (&mut lines[found].1, row.tokens as f64);
        if points.iter().all(|&(x, _)| x != tokens) {
            points.push((tokens, of(row)));
        }
    }
    lines.iter().map(|(name, points)| Series::line(name, points.clone())).collect()
}
