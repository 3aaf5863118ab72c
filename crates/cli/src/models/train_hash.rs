//! `vattention train-hash`: maps for `hash-attention`, trained on traces.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use vattention::selectors::Bits;
use vattention::trace::write_beside;
use vattention_train::Corpus;
use vattention_train::hash::{
    Checkpoint, HeldOut, LayerRecall, Training, TrainingSettings, recall,
};

use crate::fail::note;
use crate::outputs::{check_outputs, same_file};
use crate::{Failure, progress, say};

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

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let settings = args.settings();
    settings.check()?;
    let corpus = Corpus::open(&args.traces)?;
    let other = (!args.held_out.is_empty()).then(|| Corpus::open(&args.held_out)).transpose()?;
    expect_apart(&args.traces, &args.held_out)?;
    let held_out = other.as_ref().map_or(HeldOut::LastQueries, HeldOut::Traces);
    let checkpoint = Checkpoint::of(&args.output);
    let inputs: Vec<&Path> =
        args.traces.iter().chain(&args.held_out).map(PathBuf::as_path).collect();
    let outputs = [("--output", &args.output), ("the checkpoint", checkpoint.path())];
    check_outputs(&outputs.map(|(option, path)| (option, Some(path))), &inputs)?;
    expect_checkpoint(&checkpoint, args.resume)?;
    let training =
        Training { corpus: &corpus, settings: &settings, held_out, checkpoint: &checkpoint };
    let bar = progress::bar("steps");
    let mut forecast = Forecast::default();
    let weights = training.run(args.resume, &mut |done, total, _| {
        progress::show(&bar, done, total);
        if let Some(left) = forecast.left(done, total, Instant::now()) {
            note(&format!("{total} steps; some {} minutes are left", left.as_secs().div_ceil(60)));
        }
    })?;
    bar.finish_and_clear();
    write_beside(&args.output, &weights.to_bytes()?)?;
    checkpoint.remove()?;
    let found = recall(&settings.selector(&args.output), settings.top, &corpus, held_out)?;
    let header = format!("recall of the best {} in a sixteenth, of held-out queries", settings.top);
    say(&format!("wrote {}\n\n{header}:\n{}", args.output.display(), table(&found)))
}

impl Args {
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

/// Recall on what was learnt from would say nothing about other text.
pub(super) fn expect_apart(traces: &[PathBuf], held_out: &[PathBuf]) -> Result<(), Failure> {
    let learnt_from = |held: &&PathBuf| traces.iter().any(|t| same_file(t) == same_file(held));
    match held_out.iter().find(learnt_from) {
        Some(path) => Err(Failure::input(format!(
            "--held-out {}: expected another file than those that are learnt from",
            path.display()
        ))),
        None => Ok(()),
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

pub(super) fn bits(text: &str) -> Result<Bits, String> {
    let number: u64 = text.parse().map_err(|_| "expected a number from 1 to 128".to_owned())?;
    Bits::try_from(number)
}

pub(super) fn table(found: &[LayerRecall]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["layer", "trained", "worst head", "random hyperplanes"]);
    for LayerRecall { layer, trained, hyperplanes } in found {
        let worst = trained.iter().copied().fold(1.0, f64::min);
        let numbers = [mean(trained), worst, mean(hyperplanes)];
        let numbers = numbers.map(|x| format!("{x:.3}"));
        table.add_row(std::iter::once(layer.to_string()).chain(numbers));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
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
