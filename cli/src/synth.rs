//! `vattention synth`: a trace of synthetic heads of known difficulty.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vattention::trace::{HeadKind, Synth, TraceInfo, write_trace};
use vattention::{Shape, Storage};

use crate::fail::{Failure, say};
use crate::numbers::trace_storage;
use crate::outputs::check_outputs;

#[derive(Debug, clap::Args)]
pub(crate) struct SynthArgs {
    /// Kind of attention of the heads: diffuse, typical, sharp, vsharp, local, osc, needle or
    /// heavy.
    #[arg(long)]
    kind: HeadKind,
    /// Tokens in the cache.
    #[arg(long)]
    tokens: usize,
    /// Query heads.
    #[arg(long, default_value_t = 8)]
    query_heads: usize,
    /// KV heads; divides the number of query heads.
    #[arg(long, default_value_t = 2)]
    kv_heads: usize,
    /// Elements of a query and of a key.
    #[arg(long, default_value_t = 128)]
    head_dim: usize,
    /// Elements of a value; by default, the same as of a key.
    #[arg(long)]
    value_dim: Option<usize>,
    /// Layers.
    #[arg(long, default_value_t = 1)]
    layers: usize,
    /// Decode queries, at the last positions.
    #[arg(long, default_value_t = 16)]
    queries: usize,
    /// Prompt queries, at the positions before the decode queries.
    #[arg(long, default_value_t = 0)]
    prompt_queries: usize,
    /// Share of the attention that a learned sink of each query head holds, from 0 (no sinks) to
    /// below 1.
    #[arg(long, default_value_t = 0.0)]
    sink_share: f64,
    /// Spread of the mean value: the smaller the spread, the more the values cancel.
    #[arg(long, default_value_t = 0.7)]
    value_mean: f64,
    /// Random seed; equal seeds make equal traces.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number format of the trace.
    #[arg(long, default_value_t = Storage::F16, value_parser = trace_storage())]
    dtype: Storage,
    /// Trace file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(args: &SynthArgs) -> Result<(), Failure> {
    if !(1..=4096).contains(&args.layers) {
        return Err(Failure::input(format!("--layers: {}; expected 1 to 4096", args.layers)));
    }
    check_outputs(&[("--output", Some(&args.output))], &[])?;
    let shape = Shape {
        query_heads: args.query_heads,
        kv_heads: args.kv_heads,
        head_dim: args.head_dim,
        value_dim: args.value_dim.unwrap_or(args.head_dim),
    };
    let layer = |number: usize| {
        let seed = args.seed.wrapping_mul(4096).wrapping_add(number as u64);
        let SynthArgs { kind, tokens, queries, prompt_queries: prompt, .. } = *args;
        let SynthArgs { sink_share, value_mean, .. } = *args;
        let synth = Synth { kind, tokens, shape, queries, prompt, sink_share, value_mean, seed };
        Ok((number, synth.layer()?))
    };
    let layers = (0..args.layers).map(layer).collect::<Result<BTreeMap<_, _>, Failure>>()?;
    let info = TraceInfo {
        scale: None,
        share: None,
        model: Some(format!("synthetic heads, kind {}", args.kind.name())),
        source: Some(format!("vattention synth --seed {}", args.seed)),
    };
    write_trace(&args.output, &info, &layers, args.dtype)?;
    say(&format!("wrote {}", args.output.display()))
}
