//! `vattention compare`: pipelines against exact attention on a trace.

use std::path::{Path, PathBuf};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use vattention::experiments::{Comparison, Measured, TraceSettings, compare};
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

const HEADER: [&str; 15] = [
    "pipeline",
    "read",
    "per head",
    "sampled",
    "recall",
    "index",
    "error mean",
    "p95",
    "max",
    "bar",
    "outside",
    "bars",
    "promise",
    "violated",
    "evidence",
];

fn table(comparison: &Comparison) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let set = comparison.pipelines.iter().any(|pipeline| pipeline.set.is_some());
    let evict = comparison.pipelines.iter().any(|pipeline| pipeline.live.is_some());
    let of_live = if evict { &OF_LIVE[..] } else { &[] };
    let header = HEADER.iter().chain(of_live).copied();
    table.set_header(header.chain(set.then_some("set")));
    for pipeline in &comparison.pipelines {
        let what = || pipeline.set.clone().unwrap_or_else(|| "-".into());
        let of_live = evict.then(|| live_cells(pipeline)).into_iter().flatten();
        table.add_row(cells(pipeline).into_iter().chain(of_live).chain(set.then(what)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let legend = "\
read      share of the visible tokens that a KV head's query heads read together: with several of them
          more than a `size`, which each picks for itself (unless `score = \"group\"`)
per head  share that each query head reads; under `share = \"group\"`, all that any of them picked
sampled   tokens drawn by chance per row
recall    attention of the tokens read for certain, relative to that of the best as many
index     bytes per token that selectors keep beside a KV head's keys and values
error     |out - exact| / |exact| over all rows
bar       the relative error that each sample says is exceeded with probability delta at most, mean over
          rows that are not read as a whole
outside   share of these rows whose error is larger
bars      evidence of the rows outside on delta, over all rows; as `evidence` for violations
promise   target: epsilon, delta, that is Pr(relative error of the target > epsilon) <= delta; with
          the floor that errors are relative to at least, and whom it is about if that is a step
violated  rows whose error of the target exceeded epsilon; if the promise is about a step, steps: all
          query heads of a layer at one query, of which any may exceed it
evidence  what that says of delta: \"within delta\", their share is at most delta; \"above delta\", it is
          more, which may be chance; \"contradicted\", that is less probable than 1e-6 if the promise
          is kept; query heads that share a token list count as one";
    let Comparison { trace, backend, .. } = comparison;
    let of_set = if set {
        "\nset       what was set so that the pipeline reads the share asked for"
    } else {
        ""
    };
    let of_live = if evict {
        "
live      share of the visible tokens that are not evicted
of live   |out - live| / |live|, mean over all rows, of exact attention over the live tokens alone: what is lost
          by not reading all of them; the rest of the error is lost by evicting the others"
    } else {
        ""
    };
    format!("{trace}, backend {backend}\n\n{table}\n\n{legend}{of_live}{of_set}")
}

/// Columns that are shown if a pipeline evicts tokens.
const OF_LIVE: [&str; 2] = ["live", "of live"];

fn live_cells(pipeline: &Measured) -> [String; 2] {
    let live = pipeline.live.as_ref();
    let tokens = live.map_or(1.0, |live| live.tokens.mean);
    let error = live.map_or(pipeline.output_error.mean, |live| live.output_error.mean);
    [percent(tokens), short(error)]
}

fn cells(pipeline: &Measured) -> [String; 15] {
    let error = pipeline.output_error;
    let guarantee = pipeline.guarantee.as_ref();
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    [
        pipeline.pipeline.clone(),
        percent(pipeline.density),
        percent(pipeline.density_per_query_head),
        or_dash(pipeline.budget.map(|budget| format!("{:.0}", budget.mean))),
        percent(pipeline.recall),
        format!("{:.1}", pipeline.index_bytes_per_token),
        short(error.mean),
        short(error.p95),
        short(error.max),
        or_dash(pipeline.bars.mean.map(short)),
        or_dash(pipeline.bars.share_outside().map(percent)),
        or_dash(pipeline.bars.evidence.map(|evidence| evidence.to_string())),
        or_dash(guarantee.map(|it| promise(&it.promise))),
        or_dash(guarantee.map(|it| it.violations.to_string())),
        or_dash(guarantee.map(|it| it.evidence.to_string())),
    ]
}
