//! `vattention bench`: decode speed against dense attention, with cold caches.

mod builtin;
mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vattention::experiments::{
    Bench, BenchHeads, Entry, TracedHeads, Variant, at_density, decides_itself,
};
use vattention::plots;
use vattention::trace::Trace;
use vattention::{FallBack, Fraction, PageSize, Placement, Shape, Storage};

use crate::backends::BackendArg;
use crate::fail::Failure;
use crate::numbers::{fall_back, fraction, storage};
use crate::outputs::{OutputArgs, check_outputs};
use crate::pipelines::{Changes, LoadedPipelines};
use crate::progress;
use crate::provenance::Provenance;
use crate::sharing::Call;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Pipeline files; by default, four built-in pipelines.
    configs: Vec<PathBuf>,
    /// Measure on the heads of a trace, layer by layer, instead of synthetic ones.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["query_heads", "kv_heads", "head_dim"])]
    trace: Option<PathBuf>,
    /// Tokens in the cache, separated by commas; by default, 8192, 32768 and 131072, or those of
    /// the trace. A trace with fewer tokens is repeated.
    #[arg(long, value_delimiter = ',', value_parser = tokens)]
    tokens: Option<Vec<usize>>,
    /// Query heads.
    #[arg(long, default_value_t = 32)]
    query_heads: usize,
    /// KV heads; divides the number of query heads.
    #[arg(long, default_value_t = 8)]
    kv_heads: usize,
    /// Elements of a query, a key and a value.
    #[arg(long, default_value_t = 128)]
    head_dim: usize,
    /// Number formats of keys and values, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "bf16", value_parser = storage())]
    dtype: Vec<Storage>,
    /// Shares of the tokens to read in addition to sink and window, separated by commas. A selector
    /// with a size and an estimator with a size get half of the share each; if there is only one of
    /// them, it gets the whole share. A pipeline whose estimator has no size runs once, unchanged.
    /// By default, all pipelines run unchanged.
    #[arg(long, value_delimiter = ',', value_parser = fraction)]
    density: Vec<Fraction>,
    /// Threads, separated by commas; by default, 1 and the number of hardware threads.
    #[arg(long, value_delimiter = ',', value_parser = threads)]
    threads: Option<Vec<usize>>,
    #[command(flatten)]
    machine: BackendArg,
    /// Keep keys and values in host memory, from which a GPU fetches the rows that it reads.
    #[arg(long)]
    offload: bool,
    /// Forbid huge pages for keys and values in host memory, to measure their effect.
    #[arg(long)]
    small_pages: bool,
    /// Condition under which all tokens are read instead of a pipeline's token list: by-count, if
    /// the list costs more by a fixed rule; by-clock, also if reading all tokens took less time in
    /// earlier steps.
    #[arg(long, default_value_t, value_parser = fall_back())]
    fall_back: FallBack,
    /// Omit the error bars of samples of a fixed size, which makes steps faster.
    #[arg(long)]
    omit_error_bars: bool,
    /// Sequences in a batch; their lengths range from about half of the tokens to all.
    #[arg(long, value_parser = sequences, default_value = "1")]
    sequences: usize,
    #[command(flatten)]
    changes: Changes,
    /// Seconds to measure each set of pipelines after warming up; at least five rounds.
    #[arg(long, value_parser = seconds, default_value = "3", allow_hyphen_values = true)]
    seconds: Duration,
    /// Bytes of keys and values in all layers of a pipeline, and of the memory that is read in
    /// order; should be many times the size of the processor's caches.
    #[arg(long, value_name = "BYTES", value_parser = cold_bytes, default_value = "1073741824")]
    cold_bytes: usize,
    #[command(flatten)]
    outputs: OutputArgs,
}

pub(crate) fn run(args: &BenchArgs, call: &Call) -> Result<(), Failure> {
    let backend = args.machine.find()?;
    let LoadedPipelines { lineup, files } = load_pipelines(args)?;
    let inputs: Vec<&Path> = files.iter().chain(&args.trace).map(PathBuf::as_path).collect();
    check_outputs(&args.outputs.files(), &inputs)?;
    let bench = build_bench(args)?;
    let count = lineup.run.len() * args.density.len().max(1);
    let most = bench.most_layers(count)?;
    let numbers: BTreeSet<usize> = (0..most).map(|layer| bench.heads.number(layer)).collect();
    let shape = bench.heads.shape();
    let layers: Vec<_> = numbers.into_iter().map(|number| (number, shape)).collect();
    let lineup = lineup.fitting(&layers, &*backend)?;
    let classed =
        |entry: Entry| bench.heads.expect_classes(&entry.pipeline, most).map(|()| vec![entry]);
    let lineup = lineup.expand(classed)?.expand(|entry| variants(&entry, &args.density))?;
    let bar = progress::bar("parts");
    let report = bench.run(&lineup.run, &*backend, &|done, total| {
        progress::show(&bar, done, total);
    })?;
    bar.finish_and_clear();
    let pipelines = lineup.run.iter().map(|variant| &*variant.pipeline);
    let run = || Provenance::new(call, &inputs, pipelines, Some(backend.name()));
    let (svg, table) = (|| plots::bench(&report), table::show(&report));
    args.outputs.publish(run, &lineup.with_left_out(&report), svg, &table)
}

fn build_bench(args: &BenchArgs) -> Result<Bench, Failure> {
    let (heads, all_tokens) = open_heads(args)?;
    Ok(Bench {
        heads,
        tokens: args.tokens.clone().unwrap_or(all_tokens),
        storages: args.dtype.clone(),
        threads: args.threads.clone().unwrap_or_else(all_threads),
        fall_back: args.fall_back,
        omit_error_bars: args.omit_error_bars,
        sequences: args.sequences,
        page_size: if args.small_pages { PageSize::Small } else { PageSize::Huge },
        placement: if args.offload { Placement::Host } else { Placement::Device },
        time: args.seconds,
        cold_bytes: args.cold_bytes,
    })
}

/// Returns the heads to measure on, and the default of `--tokens`.
fn open_heads(args: &BenchArgs) -> Result<(BenchHeads, Vec<usize>), Failure> {
    let Some(path) = &args.trace else {
        let shape = Shape {
            query_heads: args.query_heads,
            kv_heads: args.kv_heads,
            head_dim: args.head_dim,
            value_dim: args.head_dim,
        };
        return Ok((BenchHeads::MadeUp(shape), vec![8192, 32768, 131_072]));
    };
    let traced = TracedHeads::new(&Trace::open(path)?)?;
    let tokens = traced.tokens();
    Ok((BenchHeads::Traced(traced), vec![tokens]))
}

/// Returns the default of `--threads`: one thread, and the number of hardware threads.
fn all_threads() -> Vec<usize> {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    if most > 1 { vec![1, most] } else { vec![1] }
}

/// Loads the pipelines of the files, or the built-in ones.
fn load_pipelines(args: &BenchArgs) -> Result<LoadedPipelines, Failure> {
    if args.configs.is_empty() {
        return args.changes.parse(&builtin::texts());
    }
    args.changes.load(&args.configs)
}

/// Returns a pipeline at each density; unchanged if there is no density, if the pipeline is dense,
/// or if its estimator decides the sample size.
fn variants(
    entry: &Entry,
    densities: &[Fraction],
) -> Result<Vec<Variant>, vattention::experiments::Error> {
    let pipeline = &entry.pipeline;
    if densities.is_empty() || pipeline.is_dense() || decides_itself(pipeline) {
        return Ok(vec![Variant::untuned(pipeline.clone())]);
    }
    let variant = |&density: &Fraction| {
        let pipeline = at_density(pipeline, density)?;
        Ok(Variant { asked: Some(density.get()), ..Variant::untuned(pipeline) })
    };
    densities.iter().map(variant).collect()
}

fn tokens(text: &str) -> Result<usize, String> {
    whole(text, (1 << 31) - 1)
}

fn threads(text: &str) -> Result<usize, String> {
    whole(text, 1024)
}

fn sequences(text: &str) -> Result<usize, String> {
    whole(text, 1024)
}

fn cold_bytes(text: &str) -> Result<usize, String> {
    whole(text, isize::MAX as usize)
}

fn whole(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("expected a whole number from 1 to {most}"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: Option<f64> = text.parse().ok().filter(|number| *number >= 0.0);
    let time = number.and_then(|number| Duration::try_from_secs_f64(number).ok());
    time.ok_or_else(|| "expected a number of seconds, at least 0".into())
}
