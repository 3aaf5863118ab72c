//! `vattention train-hash`: maps for `hash-attention`, trained on traces.

use vattention::selectors::Bits;
use vattention::trace::write_beside;
use vattention_train::hash::{Checkpoint, Training, TrainingSettings};

use super::learning::{Learning, bits};
use crate::fail::Failure;
use crate::progress;

#[derive(Debug, clap::Args)]
pub(crate) struct TrainHashArgs {
    #[command(flatten)]
    learning: Learning,
    /// Go on from the checkpoint beside the output, which an interrupted training has left.
    #[arg(long)]
    resume: bool,
    /// Signs in a code, 1 to 128.
    #[arg(long, default_value = "32", value_parser = bits)]
    bits: Bits,
    /// Widths between the layers of the networks, between commas; by default two of head_dim.
    #[arg(long, value_delimiter = ',', value_name = "WIDTHS")]
    hidden: Option<Vec<usize>>,
    /// Optimiser steps for each layer of the model.
    #[arg(long, default_value_t = TrainingSettings::default().steps)]
    steps: usize,
    /// Queries in a step.
    #[arg(long, default_value_t = TrainingSettings::default().queries)]
    queries: usize,
    /// Tokens in a step, in a row.
    #[arg(long, default_value_t = TrainingSettings::default().tokens)]
    tokens: usize,
    /// Adam's learning rate.
    #[arg(long, default_value_t = TrainingSettings::default().learning_rate)]
    learning_rate: f64,
    /// Keys with the largest q·k that a query should find.
    #[arg(long, default_value_t = TrainingSettings::default().top)]
    top: usize,
    /// How much more each of these counts in the loss than another key.
    #[arg(long, default_value_t = TrainingSettings::default().positive_weight)]
    positive_weight: f64,
    /// Equal seeds make equal weights, on one machine.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(args: &TrainHashArgs) -> Result<(), Failure> {
    let settings = args.settings();
    settings.check()?;
    let given = args.learning.open()?;
    let (corpus, held_out) = (&given.corpus, given.held_out());
    let checkpoint = Checkpoint::of(&args.learning.output);
    args.learning.check_outputs(&[("the checkpoint", Some(checkpoint.path()))])?;
    expect_checkpoint(&checkpoint, args.resume)?;
    let training = Training { corpus, settings: &settings, held_out, checkpoint: &checkpoint };
    let bar = progress::bar("steps");
    let weights = training.run(args.resume, &mut |done, total, _| {
        progress::show(&bar, done, total);
    })?;
    bar.finish_and_clear();
    write_beside(&args.learning.output, &weights.to_bytes()?)?;
    checkpoint.remove()?;
    args.learning.say_recall(&settings.selector(&args.learning.output), settings.top, &given)
}

impl TrainHashArgs {
    fn settings(&self) -> TrainingSettings {
        let Self { bits, steps, queries, tokens, learning_rate, .. } = *self;
        let Self { top, positive_weight, seed, .. } = *self;
        let hidden = self.hidden.clone();
        TrainingSettings {
            bits,
            hidden,
            steps,
            queries,
            tokens,
            learning_rate,
            top,
            positive_weight,
            seed,
        }
    }
}

/// A checkpoint is gone on from when asked for, and never overwritten by another training.
fn expect_checkpoint(checkpoint: &Checkpoint, resume: bool) -> Result<(), Failure> {
    let path = checkpoint.path().display();
    match (resume, checkpoint.path().exists()) {
        (true, false) => Err(Failure::input(format!("--resume: there is no {path} to go on from"))),
        (false, true) => Err(Failure::input(format!(
            "{path}: left by an interrupted training; expected --resume to go on, or no such file"
        ))),
        _ => Ok(()),
    }
}
