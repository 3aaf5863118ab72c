//! `vattention train-hata`: matrices for `hash-attention`, trained on traces as in HATA.

use vattention::selectors::Bits;
use vattention::trace::write_beside;
use vattention_train::hash::{HataSettings, train_hata};

use super::training_args::{TrainingArgs, bits};
use crate::fail::Failure;
use crate::progress;

/// Number of keys with the largest q·k whose recall is reported.
const BEST: usize = 32;

#[derive(Debug, clap::Args)]
pub(crate) struct TrainHataArgs {
    #[command(flatten)]
    traces: TrainingArgs,
    /// Bits of a code, 1 to 128.
    #[arg(long, default_value = "128", value_parser = bits)]
    bits: Bits,
    /// Optimizer steps per layer of the model.
    #[arg(long, default_value_t = HataSettings::default().steps)]
    steps: usize,
    /// Queries per query head and step.
    #[arg(long, default_value_t = HataSettings::default().queries)]
    queries: usize,
    /// Consecutive tokens per step.
    #[arg(long, default_value_t = HataSettings::default().tokens)]
    tokens: usize,
    /// Learning rate.
    #[arg(long, default_value_t = HataSettings::default().learning_rate)]
    learning_rate: f64,
    /// Random seed; on one machine, equal seeds make equal weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(args: &TrainHataArgs) -> Result<(), Failure> {
    let settings = args.settings();
    settings.check()?;
    let traces = args.traces.open()?;
    args.traces.check_outputs(&[])?;
    let bar = progress::bar("steps");
    let weights =
        train_hata(&traces.corpus, &settings, traces.held_out(), &mut |done, total, _| {
            progress::show(&bar, done, total);
        })?;
    bar.finish_and_clear();
    write_beside(&args.traces.output, &weights.to_bytes()?)?;
    args.traces.print_recall(&settings.selector(&args.traces.output), BEST, &traces)
}

impl TrainHataArgs {
    fn settings(&self) -> HataSettings {
        let Self { bits, steps, queries, tokens, learning_rate, seed, .. } = *self;
        HataSettings { bits, steps, queries, tokens, learning_rate, seed }
    }
}
