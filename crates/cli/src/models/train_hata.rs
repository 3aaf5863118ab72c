//! `vattention train-hata`: matrices for `hash-attention`, trained on traces as HATA's.

use std::path::{Path, PathBuf};

use vattention::selectors::Bits;
use vattention::trace::write_beside;
use vattention_train::Corpus;
use vattention_train::hash::{HataSettings, HeldOut, recall, train_hata};

use super::train_hash::{bits, expect_apart, table};
use crate::outputs::check_outputs;
use crate::{Failure, progress, say};

/// The keys of a query that recall is of.
const BEST: usize = 32;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Traces of one model to learn from, with many queries each.
    #[arg(long = "trace", value_name = "FILE", num_args = 1.., required = true)]
    traces: Vec<PathBuf>,
    /// Traces to measure recall on; by default the last eighth of each trace's queries, which are
    /// then not learnt from.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    held_out: Vec<PathBuf>,
    /// The weights to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Signs in a code, 1 to 128.
    #[arg(long, default_value = "128", value_parser = bits)]
    bits: Bits,
    /// Steps for each layer of the model.
    #[arg(long, default_value_t = HataSettings::default().steps)]
    steps: usize,
    /// Queries of each query head in a step.
    #[arg(long, default_value_t = HataSettings::default().queries)]
    queries: usize,
    /// Tokens in a step, in a row.
    #[arg(long, default_value_t = HataSettings::default().tokens)]
    tokens: usize,
    /// How far a step goes along the gradient.
    #[arg(long, default_value_t = HataSettings::default().learning_rate)]
    learning_rate: f64,
    /// Equal seeds make equal weights, on one machine.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let settings = args.settings();
    settings.check()?;
    let corpus = Corpus::open(&args.traces)?;
    let other = (!args.held_out.is_empty()).then(|| Corpus::open(&args.held_out)).transpose()?;
    expect_apart(&args.traces, &args.held_out)?;
    let held_out = other.as_ref().map_or(HeldOut::LastQueries, HeldOut::Traces);
    let inputs: Vec<&Path> =
        args.traces.iter().chain(&args.held_out).map(PathBuf::as_path).collect();
    check_outputs(&[("--output", Some(&args.output))], &inputs)?;
    let bar = progress::bar("steps");
    let weights = train_hata(&corpus, &settings, held_out, &mut |done, total, _| {
        progress::show(&bar, done, total);
    })?;
    bar.finish_and_clear();
    write_beside(&args.output, &weights.to_bytes()?)?;
    let found = recall(&settings.selector(&args.output), BEST, &corpus, held_out)?;
    let header = format!("recall of the best {BEST} in a sixteenth, of held-out queries");
    say(&format!("wrote {}\n\n{header}:\n{}", args.output.display(), table(&found)))
}

impl Args {
    fn settings(&self) -> HataSettings {
        let Self { bits, steps, queries, tokens, learning_rate, seed, .. } = *self;
        HataSettings { bits, steps, queries, tokens, learning_rate, seed }
    }
}
