//! Table of a bench report.

use vattention::experiments::{BenchReport, BenchRow};

use crate::numbers::percent;
use crate::table::{self, Column, or_dash};

pub(super) fn show(report: &BenchReport) -> String {
    format!("{}\n\n{}", heading(report), table::show(&columns(), &report.rows))
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

fn columns() -> Vec<Column<'static, BenchRow>> {
    let part = |part: fn(&BenchRow) -> Option<f64>| {
        move |row: &BenchRow| or_dash(part(row).map(|share| format!("{:.0} %", 100.0 * share)))
    };
    let unless_zero = |x: f64, text: String| if x == 0.0 { "-".into() } else { text };
    vec![
        Column::<BenchRow>::text("pipeline", "", |row| row.pipeline.clone()),
        Column::<BenchRow>::new("tokens", "", |row| row.tokens.to_string()),
        Column::<BenchRow>::new("threads", "", |row| row.threads.to_string()),
        Column::<BenchRow>::new("dtype", "", |row| row.dtype.clone()),
        Column::<BenchRow>::new(
            "density",
            "share of the visible tokens that a KV head's query heads read together",
            |row| percent(row.density),
        ),
        Column::<BenchRow>::new("sampled", "residual tokens drawn per row", |row| {
            format!("{:.0}", row.sampled)
        }),
        Column::<BenchRow>::new(
            "ms",
            "one decode step of one layer, the median over rounds",
            |row| format!("{:.3}", row.ms),
        ),
        Column::<BenchRow>::new(
            "GB/s",
            "keys and values read: of a shared list once for its KV head, of per-head lists each",
            |row| format!("{:.2}", row.gb_s),
        ),
        Column::<BenchRow>::new(
            "of read",
            "that, of the speed of reading memory in order in the same round",
            |row| percent(row.of_bandwidth),
        ),
        Column::<BenchRow>::new(
            "speed-up",
            "the time of dense attention in the same round over this one's",
            |row| format!("{:.2} x", row.speedup_over_dense),
        ),
        Column::<BenchRow>::new(
            "error",
            "of the output, relative to dense attention's in the same round; the mean over all rows \
             that were timed",
            move |row| unless_zero(row.error, format!("{:.4}", row.error)),
        ),
        Column::<BenchRow>::new(
            "violated",
            "rows whose error exceeded what the pipeline promises, or steps, if it promises that of \
             whole steps",
            |row| or_dash(row.violations.map(|counts| counts.to_string())),
        ),
        Column::<BenchRow>::new(
            "select",
            "share of the time, as `sample` and `attend`; - where the backend does not report it",
            part(|row| row.select_share),
        ),
        Column::<BenchRow>::new("sample", "", part(|row| row.sample_share)),
        Column::<BenchRow>::new("attend", "", part(|row| row.attend_share)),
        Column::<BenchRow>::new(
            "huge",
            "share of the process's memory that is in huge pages, without which gathered rows are \
             slower",
            part(|row| row.huge_pages),
        ),
        Column::<BenchRow>::new(
            "fall-back",
            "share of the rows for which everything was read, because that is faster than the list",
            move |row| unless_zero(row.fell_back, percent(row.fell_back)),
        ),
    ]
}
