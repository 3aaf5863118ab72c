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
    let batch = report.rows.first().map_or(1, |row| row.sequences);
    if batch > 1 {
        lines.push(format!(
            "{batch} sequences in a batch, with about half of the tokens to all of them"
        ));
    }
    for bandwidth in &report.bandwidth_gb_s {
        let (threads, speed) = (bandwidth.threads, bandwidth.gb_s);
        let plural = if threads == 1 { "" } else { "s" };
        lines.push(format!("{threads} thread{plural} read {speed:.1} GB/s in order"));
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
            "keys and values read: once per KV head for a shared token list, once per query head \
             for separate lists",
            |row| format!("{:.2}", row.gb_s),
        ),
        Column::<BenchRow>::new(
            "of read",
            "GB/s relative to reading memory in order in the same round",
            |row| percent(row.of_bandwidth),
        ),
        Column::<BenchRow>::new(
            "speed-up",
            "time of dense attention in the same round, divided by this time",
            |row| format!("{:.2} x", row.speedup_over_dense),
        ),
        Column::<BenchRow>::new(
            "error",
            "relative error of the output against dense attention in the same round; mean over all \
             timed rows",
            move |row| unless_zero(row.error, format!("{:.4}", row.error)),
        ),
        Column::<BenchRow>::new(
            "violated",
            "rows whose error exceeded the promised epsilon, or steps, if the promise is about \
             whole steps",
            |row| or_dash(row.violations.map(|counts| counts.to_string())),
        ),
        Column::<BenchRow>::new(
            "select",
            "shares of the time: select, sample and attend; - if the backend does not report them",
            part(|row| row.select_share),
        ),
        Column::<BenchRow>::new("sample", "", part(|row| row.sample_share)),
        Column::<BenchRow>::new("attend", "", part(|row| row.attend_share)),
        Column::<BenchRow>::new(
            "huge",
            "share of the process's memory in huge pages, which make gathered rows faster",
            part(|row| row.huge_pages),
        ),
        Column::<BenchRow>::new(
            "fall-back",
            "share of the rows that read all tokens because that is faster than the token list",
            move |row| unless_zero(row.fell_back, percent(row.fell_back)),
        ),
    ]
}
