//! Options of the commands that train `hash-attention`, and the report of recall.

use std::path::{Path, PathBuf};

use vattention::selectors::{Bits, HashAttention};
use vattention_train::Corpus;
use vattention_train::hash::{HeldOut, LayerRecall, recall};

use crate::fail::{Failure, say};
use crate::outputs::check_outputs;
use crate::paths::same_file;
use crate::table::{self, Column};

#[derive(Debug, clap::Args)]
pub(super) struct TrainingArgs {
    /// Traces of one model to train on, with many queries each.
    #[arg(long = "trace", value_name = "FILE", num_args = 1.., required = true)]
    traces: Vec<PathBuf>,
    /// Traces to measure recall on; by default, the last eighth of each trace's queries, which is
    /// then excluded from training.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    held_out: Vec<PathBuf>,
    /// File of the weights to write.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,
}

/// Opened traces: for training, and for measuring recall.
pub(super) struct TrainingTraces {
    pub(super) corpus: Corpus,
    held_out: Option<Corpus>,
}

impl TrainingTraces {
    pub(super) fn held_out(&self) -> HeldOut<'_> {
        self.held_out.as_ref().map_or(HeldOut::LastQueries, HeldOut::Traces)
    }
}

impl TrainingArgs {
    pub(super) fn open(&self) -> Result<TrainingTraces, Failure> {
        let corpus = Corpus::open(&self.traces)?;
        let held_out =
            (!self.held_out.is_empty()).then(|| Corpus::open(&self.held_out)).transpose()?;
        expect_distinct(&self.traces, &self.held_out)?;
        Ok(TrainingTraces { corpus, held_out })
    }

    /// Refuses an output, `more` included, that cannot be written or is one of the traces.
    pub(super) fn check_outputs<'a>(
        &'a self,
        more: &[(&'static str, Option<&'a PathBuf>)],
    ) -> Result<(), Failure> {
        let inputs: Vec<&Path> =
            self.traces.iter().chain(&self.held_out).map(PathBuf::as_path).collect();
        check_outputs(&[&[("--output", Some(&self.output))], more].concat(), &inputs)
    }

    /// Prints the file of the weights, and each layer's recall of the `best` keys.
    pub(super) fn print_recall(
        &self,
        selector: &HashAttention,
        best: usize,
        traces: &TrainingTraces,
    ) -> Result<(), Failure> {
        let found = recall(selector, best, &traces.corpus, traces.held_out())?;
        let header = format!(
            "recall of the best {best} keys, by picks of a sixteenth of the tokens, for held-out \
             queries"
        );
        say(&format!("wrote {}\n\n{header}:\n{}", self.output.display(), table(&found)))
    }
}

/// Refuses held-out traces that are used for training: their recall would not predict the recall on
/// other text.
fn expect_distinct(traces: &[PathBuf], held_out: &[PathBuf]) -> Result<(), Failure> {
    let is_trained_on = |held: &&PathBuf| traces.iter().any(|t| same_file(t) == same_file(held));
    match held_out.iter().find(is_trained_on) {
        Some(path) => Err(Failure::input(format!(
            "--held-out {}: expected another file than those of --trace",
            path.display()
        ))),
        None => Ok(()),
    }
}

pub(super) fn bits(text: &str) -> Result<Bits, String> {
    let number: u64 = text.parse().map_err(|_| "expected a number from 1 to 128".to_owned())?;
    Bits::try_from(number)
}

fn table(found: &[LayerRecall]) -> String {
    let worst = |it: &LayerRecall| it.trained.iter().copied().fold(1.0, f64::min);
    let columns = [
        Column::<LayerRecall>::new("layer", "", |it| it.layer.to_string()),
        Column::<LayerRecall>::new("trained", "", |it| format!("{:.3}", mean(&it.trained))),
        Column::<LayerRecall>::new("worst head", "", |it| format!("{:.3}", worst(it))),
        Column::<LayerRecall>::new("random hyperplanes", "", |it| {
            format!("{:.3}", mean(&it.hyperplanes))
        }),
    ];
    table::show(&columns, found)
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}
