//! What is printed of a bench.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use vattention::experiments::{BenchReport, BenchRow};

const HEADER: [&str; 17] = [
    "pipeline",
    "tokens",
    "threads",
    "dtype",
    "density",
    "sampled",
    "ms",
    "GB/s",
    "of read",
    "speed-up",
    "error",
    "violated",
    "select",
    "sample",
    "attend",
    "huge",
    "fall-back",
];

const LEGEND: &str = "\
density   share of the visible tokens that a KV head's query heads read together
sampled   residual tokens drawn per row
ms        one decode step of one layer, the median over rounds
GB/s      keys and values read: of a shared list once for its KV head, of per-head lists each
of read   that, of the speed of reading memory in order in the same round
speed-up  the time of dense attention in the same round over this one's
error     of the output, relative to dense attention's in the same round; the mean over all rows that were timed
violated  rows whose error exceeded what the pipeline promises, or steps, if it promises that of whole steps
select, sample, attend  shares of the time; - where the backend does not tell
huge      the share of the process's memory that is in huge pages, without which gathered rows are slower
fall-back share of the rows for which everything was read, because that is faster than the list";

pub(super) fn show(report: &BenchReport) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(HEADER);
    for row in &report.rows {
        table.add_row(cells(row));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}\n\n{table}\n\n{LEGEND}", heading(report))
}

fn heading(report: &BenchReport) -> String {
    let machine = &report.machine;
    let plural = if machine.cores == 1 { "" } else { "s" };
    let mut lines = vec![format!(
        "{}, {} core{plural}, {}, backend {}",
        machine.name(),
        machine.cores,
        machine.arch,
        report.backend
    )];
    lines.extend(report.trace.iter().map(|trace| format!("heads of {trace}")));
    let at_once = report.rows.first().map_or(1, |row| row.sequences);
    if at_once > 1 {
        lines.push(format!("{at_once} sequences at once, of about half of the tokens to all"));
    }
    for one in &report.bandwidth_gb_s {
        let plural = if one.threads == 1 { "" } else { "s" };
        lines.push(format!("{} thread{plural} read {:.1} GB/s in order", one.threads, one.gb_s));
    }
    lines.join("\n")
}

fn cells(row: &BenchRow) -> [String; 17] {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let part = |share: Option<f64>| {
        share.map_or_else(|| "-".into(), |share| format!("{:.0} %", 100.0 * share))
    };
    [
        row.pipeline.clone(),
        row.tokens.to_string(),
        row.threads.to_string(),
        row.dtype.clone(),
        percent(row.density),
        format!("{:.0}", row.sampled),
        format!("{:.3}", row.ms),
        format!("{:.2}", row.gb_s),
        percent(row.of_bandwidth),
        format!("{:.2} x", row.speedup_over_dense),
        if row.error == 0.0 { "-".into() } else { format!("{:.4}", row.error) },
        row.violations.map_or_else(|| "-".into(), |counts| counts.to_string()),
        part(row.select_share),
        part(row.sample_share),
        part(row.attend_share),
        part(row.huge_pages),
        if row.fell_back == 0.0 { "-".into() } else { percent(row.fell_back) },
    ]
}
