//! `vattention compare`: pipelines against exact attention on a trace.

use std::path::{Path, PathBuf};

use vattention::experiments::{Comparison, Guarantee, Measured, TraceSettings, compare};
use vattention::plots;
use vattention::trace::{Trace, write_beside};

use crate::backends::find_backend;
use crate::fail::{Failure, note};
use crate::layers::{LayerRange, layer_numbers};
use crate::numbers::{percent, promise, short};
use crate::outputs::{check_outputs, publish};
use crate::pipelines::{Loaded, PipelineArgs};
use crate::progress;
use crate::provenance::Provenance;
use crate::sharing::{Call, Sharing, inputs};
use crate::table::{self, Column, or_dash};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pipelines: PipelineArgs,
    /// The trace to run them on.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// The machine to run them with: cpu, cuda or reference.
    #[arg(long, default_value = "cpu")]
    backend: String,
    /// Layers of the trace, between commas, or ranges such as 9-23; by default, all.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS")]
    layers: Option<Vec<LayerRange>>,
    /// How many of each layer's queries, the last ones; by default, all.
    #[arg(long, value_name = "N")]
    queries: Option<usize>,
    #[command(flatten)]
    sharing: Sharing,
    /// Write the results as JSON; `-`: to standard output, in place of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write outputs and selections as safetensors.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Draw error against density, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, call: &Call) -> Result<(), Failure> {
    let backend = find_backend(&args.backend)?;
    let Loaded { lineup, files } = args.pipelines.load()?;
    let trace = Trace::open(&args.trace)?;
    let read: Vec<&Path> = files.iter().chain([&args.trace]).map(PathBuf::as_path).collect();
    let inputs_and_results: Vec<&Path> =
        read.iter().copied().chain(args.sharing.results.as_deref()).collect();
    let outputs = [("--json", &args.json), ("--dump", &args.dump), ("--plot", &args.plot)];
    check_outputs(&outputs.map(|(option, path)| (option, path.as_ref())), &inputs_and_results)?;
    let settings = TraceSettings {
        layers: layer_numbers(args.layers.as_ref()),
        queries: args.queries,
        dump: args.dump.is_some(),
    };
    let results = args.sharing.open(call, || inputs(&args.trace, &lineup.run))?;
    let lineup = args.pipelines.lineup(lineup, &trace, &*backend, &settings, &results)?;
    let bar = progress::bar("steps");
    let show = |done, total| progress::show(&bar, done, total);
    let (comparison, dump) = compare(&lineup.run, &trace, &*backend, &settings, &results, &show)?;
    bar.finish_and_clear();
    results.expect_whole()?;
    comparison.pipelines.iter().for_each(note_unobserved);
    if let Some(path) = &args.plot {
        write_beside(path, plots::comparison(&comparison).as_bytes())?;
    }
    if let Some(path) = &args.dump {
        dump.write(path)?;
    }
    let run = || Provenance::new(call, &read, lineup.pipelines(), Some(backend.name()));
    publish(args.json.as_deref(), run, &lineup.told(&comparison), &table(&comparison))
}

/// Notes that a pipeline was dense because the trace shows its selectors no prompt.
fn note_unobserved(one: &Measured) {
    if one.unobserved > 0 {
        note(&format!(
            "{}: {} rows read every token: a selector learns from the last queries of a prompt, \
             and the trace has none (`capture` and the Python package keep them)",
            one.file, one.unobserved
        ));
    }
}

fn table(comparison: &Comparison) -> String {
    let Comparison { trace, backend, pipelines } = comparison;
    let mut columns = columns();
    if pipelines.iter().any(|pipeline| pipeline.live.is_some()) {
        columns.extend(columns_of_evicting());
    }
    if pipelines.iter().any(|pipeline| pipeline.set.is_some()) {
        let help = "what was set so that the pipeline reads the share asked for";
        columns.push(Column::new("set", help, |it: &Measured| or_dash(it.set.clone())));
    }
    format!("{trace}, backend {backend}\n\n{}", table::show(&columns, pipelines))
}

fn columns() -> Vec<Column<'static, Measured>> {
    let guarantee = |cell: fn(&Guarantee) -> String| {
        move |it: &Measured| or_dash(it.guarantee.as_ref().map(cell))
    };
    vec![
        Column::<Measured>::text("pipeline", "", |it| it.pipeline.clone()),
        Column::<Measured>::new(
            "read",
            "share of the visible tokens that a KV head's query heads read together: with several of \
             them more than a `size`, which each picks for itself (unless `score = \"group\"`)",
            |it| percent(it.density),
        ),
        Column::<Measured>::new(
            "per head",
            "share that each query head reads; under `share = \"group\"`, all that any of them picked",
            |it| percent(it.density_per_query_head),
        ),
        Column::<Measured>::new("sampled", "tokens drawn by chance per row", |it| {
            or_dash(it.budget.map(|budget| format!("{:.0}", budget.mean)))
        }),
        Column::<Measured>::new(
            "recall",
            "attention of the tokens that are always read, relative to that of the best as many",
            |it| percent(it.recall),
        ),
        Column::<Measured>::new(
            "index",
            "bytes per token that selectors store beside a KV head's keys and values",
            |it| format!("{:.1}", it.index_bytes_per_token),
        ),
        Column::<Measured>::new("error mean", "|out - exact| / |exact| over all rows", |it| {
            short(it.output_error.mean)
        }),
        Column::<Measured>::new("p95", "", |it| short(it.output_error.p95)),
        Column::<Measured>::new("max", "", |it| short(it.output_error.max)),
        Column::<Measured>::new(
            "bar",
            "relative error that each sample says is exceeded with probability delta at most, mean \
             over rows that are not read as a whole",
            |it| or_dash(it.bars.mean.map(short)),
        ),
        Column::<Measured>::new("outside", "share of these rows whose error is larger", |it| {
            or_dash(it.bars.share_outside().map(percent))
        }),
        Column::<Measured>::new(
            "bars",
            "evidence of the rows outside on delta, over all rows; as `evidence` for violations",
            |it| or_dash(it.bars.evidence.map(|evidence| evidence.to_string())),
        ),
        Column::<Measured>::new(
            "promise",
            "target: epsilon, delta, that is Pr(relative error of the target > epsilon) <= delta; \
             with the floor that errors are relative to at least, and the scope if it is a step",
            guarantee(|it| promise(&it.promise)),
        ),
        Column::<Measured>::new(
            "violated",
            "rows whose error of the target exceeded epsilon; if the promise is about a step, steps: \
             all query heads of a layer at one query, of which any may exceed it",
            guarantee(|it| it.violations.to_string()),
        ),
        Column::<Measured>::new(
            "evidence",
            "evidence of the violations on delta: \"within delta\", their share is at most delta; \
             \"above delta\", it is more, which may be chance; \"contradicted\", that is less \
             probable than 1e-6 if the promise is kept; query heads that share a token list count \
             as one",
            guarantee(|it| it.evidence.to_string()),
        ),
    ]
}

/// Columns that are shown if a pipeline evicts tokens.
fn columns_of_evicting() -> [Column<'static, Measured>; 2] {
    [
        Column::<Measured>::new("live", "share of the visible tokens that are not evicted", |it| {
            percent(it.live.as_ref().map_or(1.0, |live| live.tokens.mean))
        }),
        Column::<Measured>::new(
            "of live",
            "|out - live| / |live|, mean over all rows, of exact attention over the live tokens \
             alone: the error of not reading all of them; the rest of the error is that of evicting \
             the others",
            |it| short(it.live.as_ref().map_or(it.output_error.mean, |it| it.output_error.mean)),
        ),
    ]
}
