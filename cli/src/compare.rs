//! `vattention compare`: pipelines against exact attention on a trace.

use std::path::PathBuf;

use vattention::experiments::{Comparison, Guarantee, PipelineResult, TraceSettings, compare};
use vattention::plots;

use crate::backends::BackendArg;
use crate::fail::{Failure, note};
use crate::numbers::{percent, promise, short};
use crate::on_trace::{CachedRows, OnTrace};
use crate::pipelines::{LoadedPipelines, PipelineArgs};
use crate::progress;
use crate::sharing::Call;
use crate::table::{self, Column, or_dash};

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pipelines: PipelineArgs,
    #[command(flatten)]
    machine: BackendArg,
    #[command(flatten)]
    on: OnTrace,
    #[command(flatten)]
    rows: CachedRows,
    /// Measure errors relative to attention over the rows of the trace before they are rounded to
    /// --dtype. By default, errors are relative to the rounded rows, unless the pipeline's
    /// estimator sets `reference`. A promise about other rows is not judged.
    #[arg(long)]
    unrounded: bool,
    /// Write outputs and selections as safetensors.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

pub(crate) fn run(args: &CompareArgs, call: &Call) -> Result<(), Failure> {
    let backend = args.machine.find()?;
    let LoadedPipelines { lineup, files } = args.pipelines.load()?;
    let (trace, settings) = args.on.open(&files, args.dump.as_ref())?;
    let trace = args.rows.store(trace);
    let settings = TraceSettings { unrounded: args.unrounded, ..settings };
    let results = args.on.results(call, &lineup.run)?;
    let lineup = args.pipelines.fit_to_trace(lineup, &trace, &*backend, &settings, &results)?;
    let bar = progress::bar("steps");
    let show = |done, total| progress::show(&bar, done, total);
    let (comparison, dump) = compare(&lineup.run, &trace, &*backend, &settings, &results, &show)?;
    bar.finish_and_clear();
    results.expect_all_shards()?;
    comparison.pipelines.iter().for_each(note_unobserved);
    if let Some(path) = &args.dump {
        dump.write(path)?;
    }
    let run = || args.on.provenance(call, &files, lineup.pipelines(), Some(backend.name()));
    let svg = || plots::comparison(&comparison);
    args.on.outputs.publish(run, &lineup.with_left_out(&comparison), svg, &table(&comparison))
}

/// Notes that rows of a pipeline were dense because the trace has no prompt queries.
fn note_unobserved(measured: &PipelineResult) {
    if measured.unobserved > 0 {
        note(&format!(
            "{}: {} rows read every token: a selector needs the last queries of the prompt, which \
             the trace does not have (`capture` and the Python package store them)",
            measured.file, measured.unobserved
        ));
    }
}

fn table(comparison: &Comparison) -> String {
    let Comparison { trace, backend, pipelines } = comparison;
    let mut columns = columns();
    if pipelines.iter().any(|pipeline| pipeline.live.is_some()) {
        columns.extend(eviction_columns());
    }
    if pipelines.iter().any(|pipeline| pipeline.rounding.is_some()) {
        columns.push(Column::new(
            "rounding",
            "bound on the change of the target by rounding keys and values to --dtype, relative to \
             the target; mean over all rows",
            |it: &PipelineResult| or_dash(it.rounding.map(|bound| short(bound.mean))),
        ));
    }
    if pipelines.iter().any(|pipeline| pipeline.set.is_some()) {
        let help = "setting with which the pipeline reads the share of --density";
        columns.push(Column::new("set", help, |it: &PipelineResult| or_dash(it.set.clone())));
    }
    format!("{trace}, backend {backend}\n\n{}", table::show(&columns, pipelines))
}

fn columns() -> Vec<Column<'static, PipelineResult>> {
    let guarantee = |cell: fn(&Guarantee) -> String| {
        move |it: &PipelineResult| or_dash(it.guarantee.as_ref().map(cell))
    };
    vec![
        Column::<PipelineResult>::text("pipeline", "", |it| it.pipeline.clone()),
        Column::<PipelineResult>::new(
            "read",
            "share of the visible tokens that a KV head's query heads read together; more than \
             `size` if query heads pick different tokens (not with `score = \"group\"`)",
            |it| percent(it.density),
        ),
        Column::<PipelineResult>::new(
            "per head",
            "share that each query head reads; with `share = \"group\"`, the union of the heads' \
             picks",
            |it| percent(it.density_per_query_head),
        ),
        Column::<PipelineResult>::new("sampled", "sampled tokens per row", |it| {
            or_dash(it.budget.map(|budget| format!("{:.0}", budget.mean)))
        }),
        Column::<PipelineResult>::new(
            "recall",
            "attention weight of the selected tokens, relative to an exact top-k of the same size",
            |it| percent(it.recall),
        ),
        Column::<PipelineResult>::new(
            "index",
            "bytes per token that selectors store in addition to a KV head's keys and values",
            |it| format!("{:.1}", it.index_bytes_per_token),
        ),
        Column::<PipelineResult>::new(
            "error mean",
            "|out - exact| / |exact| over all rows",
            |it| short(it.output_error.mean),
        ),
        Column::<PipelineResult>::new("p95", "", |it| short(it.output_error.p95)),
        Column::<PipelineResult>::new("max", "", |it| short(it.output_error.max)),
        Column::<PipelineResult>::new(
            "bar",
            "error bar: bound on the relative error at confidence 1 - delta; mean over rows that \
             do not read all tokens",
            |it| or_dash(it.bars.mean.map(short)),
        ),
        Column::<PipelineResult>::new(
            "outside",
            "share of these rows whose error exceeds its bar",
            |it| or_dash(it.bars.share_outside().map(percent)),
        ),
        Column::<PipelineResult>::new(
            "bars",
            "verdict on delta from the number of rows outside, among all rows; same words as \
             `evidence`",
            |it| or_dash(it.bars.evidence.map(|evidence| evidence.to_string())),
        ),
        Column::<PipelineResult>::new(
            "promise",
            "target: epsilon, delta, meaning Pr(relative error of the target > epsilon) <= delta; \
             followed by the scope if it is a step",
            guarantee(|it| promise(&it.promise)),
        ),
        Column::<PipelineResult>::new(
            "violated",
            "rows whose error of the target exceeded epsilon; with scope `step`, steps (all query \
             heads of a layer at one query) in which any head exceeded it",
            guarantee(|it| it.violations.to_string()),
        ),
        Column::<PipelineResult>::new(
            "evidence",
            "verdict on delta from the violations: \"within delta\", their share is at most delta; \
             \"above delta\", it is larger, perhaps by chance; \"contradicted\", their number has \
             a probability below 1e-6 if the promise holds; query heads that share a token list \
             count as one",
            guarantee(|it| it.evidence.to_string()),
        ),
    ]
}

/// Returns the columns that are shown if a pipeline evicts tokens.
fn eviction_columns() -> [Column<'static, PipelineResult>; 2] {
    [
        Column::<PipelineResult>::new(
            "live",
            "share of the visible tokens that are not evicted",
            |it| percent(it.live.as_ref().map_or(1.0, |live| live.tokens.mean)),
        ),
        Column::<PipelineResult>::new(
            "of live",
            "|out - live| / |live|, mean over all rows; `live` is exact attention over the live \
             tokens. This is the error from sparse reading; the rest of the error is from eviction",
            |it| short(it.live.as_ref().map_or(it.output_error.mean, |it| it.output_error.mean)),
        ),
    ]
}
