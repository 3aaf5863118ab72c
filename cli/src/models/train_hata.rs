//! `vattention train-hata`: matrices for `hash-attention`, trained on traces as HATA's.

use vattention::selectors::Bits;
use vattention::trace::write_beside;
use vattention_train::hash::{HataSettings, train_hata};

use super::learning::{Learning, bits};
use crate::fail::Failure;
use crate::progress;

/// The keys of a query that recall is of.
const BEST: usize = 32;

#[derive(Debug, clap::Args)]
pub(crate) struct TrainHataArgs {
    #[command(flatten)]
    learning: Learning,
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

pub(crate) fn run(args: &TrainHataArgs) -> Result<(), Failure> {
    let settings = args.settings();
    settings.check()?;
    let given = args.learning.open()?;
    args.learning.check_outputs(&[])?;
    let bar = progress::bar("steps");
    let weights = train_hata(&given.corpus, &settings, given.held_out(), &mut |done, total, _| {
        progress::show(&bar, done, total);
    })?;
    bar.finish_and_clear();
    write_beside(&args.learning.output, &weights.to_bytes()?)?;
    args.learning.say_recall(&settings.selector(&args.learning.output), BEST, &given)
}

impl TrainHataArgs {
    fn settings(&self) -> HataSettings {
        let Self { bits, steps, queries, tokens, learning_rate, seed, .. } = *self;
        HataSettings { bits, steps, queries, tokens, learning_rate, seed }
    }
}
