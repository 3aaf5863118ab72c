//! `vattention train-hash`: maps for `hash-attention`, trained on traces.

use vattention::selectors::Bits;
use vattention::trace::write_beside;
use vattention_train::hash::{Checkpoint, Training, TrainingSettings};

use super::training_args::{TrainingArgs, bits};
use crate::fail::Failure;
use crate::progress;

#[derive(Debug, clap::Args)]
pub(crate) struct TrainHashArgs {
    #[command(flatten)]
    traces: TrainingArgs,
    /// Continue from the checkpoint beside the output, which an interrupted run left.
    #[arg(long)]
    resume: bool,
    /// Bits of a code, 1 to 128.
    #[arg(long, default_value = "32", value_parser = bits)]
    bits: Bits,
    /// Widths of the networks' hidden layers, separated by commas; by default, two of head_dim.
    #[arg(long, value_delimiter = ',', value_name = "WIDTHS")]
    hidden: Option<Vec<usize>>,
    /// Optimizer steps per layer of the model.
    #[arg(long, default_value_t = TrainingSettings::default().steps)]
    steps: usize,
    /// Queries per step.
    #[arg(long, default_value_t = TrainingSettings::default().queries)]
    queries: usize,
    /// Consecutive tokens per step.
    #[arg(long, default_value_t = TrainingSettings::default().tokens)]
    tokens: usize,
    /// Adam's learning rate in the first step. It falls linearly to 0 after the last step.
    #[arg(long, default_value_t = TrainingSettings::default().learning_rate)]
    learning_rate: f64,
    /// Number of keys with the largest q·k that a query should find.
    #[arg(long, default_value_t = TrainingSettings::default().top)]
    top: usize,
    /// Weight in the loss of each of these keys, relative to other keys.
    #[arg(long, default_value_t = TrainingSettings::default().positive_weight)]
    positive_weight: f64,
    /// Random seed; on one machine, equal seeds make equal weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(args: &TrainHashArgs) -> Result<(), Failure> {
    let settings = args.settings();
    settings.check()?;
    let traces = args.traces.open()?;
    let (corpus, held_out) = (&traces.corpus, traces.held_out());
    let checkpoint = Checkpoint::beside(&args.traces.output);
    args.traces.check_outputs(&[("the checkpoint", Some(checkpoint.path()))])?;
    expect_checkpoint(&checkpoint, args.resume)?;
    let training = Training { corpus, settings: &settings, held_out, checkpoint: &checkpoint };
    let bar = progress::bar("steps");
    let weights = training.run(args.resume, &mut |done, total, _| {
        progress::show(&bar, done, total);
    })?;
    bar.finish_and_clear();
    write_beside(&args.traces.output, &weights.to_bytes()?)?;
    checkpoint.remove()?;
    args.traces.print_recall(&settings.selector(&args.traces.output), settings.top, &traces)
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

/// Refuses `--resume` without a checkpoint, and a new run that would overwrite a checkpoint.
fn expect_checkpoint(checkpoint: &Checkpoint, resume: bool) -> Result<(), Failure> {
    let path = checkpoint.path().display();
    match (resume, checkpoint.path().exists()) {
        (true, false) => {
            Err(Failure::input(format!("--resume: there is no {path} to continue from")))
        }
        (false, true) => Err(Failure::input(format!(
            "{path}: left by an interrupted run; continue with --resume, or remove the file"
        ))),
        _ => Ok(()),
    }
}
