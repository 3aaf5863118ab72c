//! `vattention train-hash`: maps for `hash-attention`, trained on traces.

use std::time::{Duration, Instant};

use vattention::selectors::Bits;
use vattention::trace::write_beside;
use vattention_train::hash::{Checkpoint, Training, TrainingSettings};

use super::learning::{Learning, bits};
use crate::fail::{Failure, note};
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
    let mut forecast = Forecast::default();
    let weights = training.run(args.resume, &mut |done, total, _| {
        progress::show(&bar, done, total);
        if let Some(left) = forecast.left(done, total, Instant::now()) {
            note(&format!("{total} steps; some {} minutes are left", left.as_secs().div_ceil(60)));
        }
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

/// How long it will take, as the first steps tell.
#[derive(Default)]
struct Forecast {
    /// The first step that was seen, and when.
    first: Option<(usize, Instant)>,
    told: bool,
}

impl Forecast {
    /// Steps that are timed.
    const TIMED: usize = 4;

    /// The time left, once, if it is worth telling.
    fn left(&mut self, done: usize, total: usize, now: Instant) -> Option<Duration> {
        let (first, begin) = *self.first.get_or_insert((done, now));
        if self.told || done - first < Self::TIMED {
            return None;
        }
        self.told = true;
        let left = now.duration_since(begin).mul_f64((total - done) as f64 / (done - first) as f64);
        (left > Duration::from_mins(1)).then_some(left)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Told once, after four steps, from where a training goes on; nothing of what takes a minute.
    #[test]
    fn the_first_steps_tell_how_long_it_will_take() {
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut forecast = Forecast::default();
        assert_eq!(forecast.left(10, 100, begin), None);
        assert_eq!(forecast.left(13, 100, after(30)), None);
        assert_eq!(forecast.left(14, 100, after(40)), Some(Duration::from_secs(860)));
        assert_eq!(forecast.left(15, 100, after(50)), None);
        let mut short = Forecast::default();
        assert_eq!([(0, 0), (4, 40)].map(|(done, at)| short.left(done, 10, after(at))), [None; 2]);
    }
}
