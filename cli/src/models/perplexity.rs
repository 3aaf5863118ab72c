//! `vattention perplexity`: log-likelihood of a text with pipelines, beside dense attention.

mod table;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vattention::experiments::{Entry, digest_of_file};
use vattention::{FallBack, Options, Storage};
use vattention_evaluate::{
    LazyWeights, PerplexityReport, PerplexityTest, PerplexityWindows, fingerprint,
};
use vattention_llm::Classes;

use crate::backends::BackendArg;
use crate::fail::{Failure, say};
use crate::models::checkpoint::{ModelFiles, read_text, row_bytes};
use crate::numbers::{fall_back, storage};
use crate::outputs::{Interrupt, check_outputs_with, write_json};
use crate::paths::is_standard_output;
use crate::pipelines::{Changes, Lineup, LoadedPipelines, fits_model};
use crate::progress;
use crate::provenance::Provenance;
use crate::sharing::{Call, Sharing, digest_pipelines};

/// Number of tokens of a window, unless the model's context is shorter.
const WINDOW: usize = 2048;

const HELP: &str = "\
The text is cut into windows of --window tokens. If the tokenizer begins texts with a token such \
as <bos>, each window begins with it. In each window, dense attention reads the first \
--dense-prefix tokens, and the pipeline reads the others one by one. After each of these, the \
log-probability of the next token is recorded. Dense attention does the same beside the \
pipelines, so attention is the only difference.

Tokens of one window depend on each other. The confidence interval of the difference is therefore \
computed from the means of the windows, by Student's distribution. The interval needs 2 windows, \
and is reliable with 10 or more.

Ctrl-C stops the work at the end of the window, and the report covers the finished windows; \
Ctrl-C again ends the command. With --results, the first Ctrl-C ends the command; repeat the same \
command to compute the windows that are not stored.";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct PerplexityArgs {
    /// Model folder in Hugging Face's format (config.json, tokenizer.json, safetensors), or GGUF
    /// file.
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// Text to score, in UTF-8.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Pipeline files, or names of built-in pipelines. Dense attention always runs beside them.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE", alias = "pipelines")]
    pipeline: Vec<PathBuf>,
    #[command(flatten)]
    changes: Changes,
    /// Tokens of a window; by default, 2048, or the model's context if it is shorter.
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Tokens at the beginning of a window that dense attention reads; they are not scored. By
    /// default, half of the window.
    #[arg(long, value_name = "N")]
    dense_prefix: Option<usize>,
    /// Tokens between the beginnings of two successive windows; by default, the number of tokens
    /// that a window scores, so that each token after the first prefix is scored once.
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Use only the first N tokens of the text.
    #[arg(long, value_name = "N")]
    text_tokens: Option<usize>,
    #[command(flatten)]
    machine: BackendArg,
    /// Number format of keys and values.
    #[arg(long, default_value_t = Storage::F32, value_parser = storage())]
    dtype: Storage,
    /// Condition under which all tokens are read instead of the pipeline's token list. `generate`
    /// and `serve` decode with by-count.
    #[arg(long, default_value_t = FallBack::Never, value_parser = fall_back())]
    fall_back: FallBack,
    #[command(flatten)]
    sharing: Sharing,
    /// Write the results as JSON, with the log-probability of each token; `-` writes to standard
    /// output instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &PerplexityArgs, call: &Call) -> Result<(), Failure> {
    let backend = args.machine.find()?;
    let LoadedPipelines { lineup, files } = args.changes.load(&args.pipeline)?;
    let checkpoint = ModelFiles::open(&args.model)?;
    let windows = args.windows(&checkpoint)?;
    let text = args.read(&checkpoint, &windows.before)?;
    windows.count(text.len())?;
    let lineup = lineup.expand(|entry| {
        fits_model(&entry, &checkpoint.layers(), &*backend).map(|()| vec![entry])
    })?;
    if call.replay.is_none() {
        args.expect_room(&windows, &lineup, &checkpoint)?;
    }
    let interrupt = Interrupt::default();
    // Stored results make an early report superfluous.
    if args.sharing.results.is_none() {
        interrupt.stop_work_first();
    }
    args.check_files(&interrupt, &files, &checkpoint)?;
    let results = args.sharing.open(call, || args.digest_inputs(&lineup.run))?;
    let pipelines: Vec<_> = lineup.run.iter().map(|entry| entry.pipeline.clone()).collect();
    let test = PerplexityTest {
        weights: LazyWeights::on_demand(&args.model),
        backend: &*backend,
        classes: find_classes(&checkpoint, &lineup.run)?,
        windows,
        options: Options { storage: args.dtype, fall_back: args.fall_back, ..Options::default() },
    };
    let bar = progress::bar("tokens");
    let report = test.run(&text, &pipelines, &results, |done, total| {
        progress::show(&bar, done, total);
        if interrupt.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(model) = test.weights.loaded() {
        checkpoint.note_untied(model);
    }
    args.publish(&report, &lineup, || {
        let model_files = checkpoint.inputs();
        let inputs = files.iter().chain([&args.text]).chain(&model_files);
        let inputs: Vec<&Path> = inputs.map(PathBuf::as_path).collect();
        Provenance::new(call, &inputs, pipelines.iter().map(Arc::as_ref), Some(backend.name()))
    })
}

impl PerplexityArgs {
    /// Returns the windows of the text.
    fn windows(&self, checkpoint: &ModelFiles<'_>) -> Result<PerplexityWindows, Failure> {
        let window = self.window.unwrap_or(WINDOW.min(checkpoint.config.context));
        checkpoint.check_length(window).map_err(Failure::input)?;
        let before = checkpoint.tokenizer.first("")?;
        Ok(PerplexityWindows::new(window, self.dense_prefix, self.stride, before)?)
    }

    /// Returns the tokens of the text, without the `before` tokens that begin each window.
    fn read(&self, checkpoint: &ModelFiles<'_>, before: &[u32]) -> Result<Vec<u32>, Failure> {
        let tokens = checkpoint.tokenizer.first(&read_text("--text", &self.text)?)?;
        let tokens = &tokens[before.len()..];
        let (found, most) = (tokens.len(), self.text_tokens.unwrap_or(tokens.len()));
        if most > found {
            let text = self.text.display();
            let reason = format!("{most}; expected at most the {found} of {text}");
            return Err(Failure::option("text-tokens", &reason));
        }
        Ok(tokens[..most].to_vec())
    }

    /// Refuses windows whose keys and values do not fit into memory: those of the prefix, and of a
    /// sequence for each pipeline and for dense attention.
    fn expect_room(
        &self,
        windows: &PerplexityWindows,
        lineup: &Lineup<Entry>,
        checkpoint: &ModelFiles<'_>,
    ) -> Result<(), Failure> {
        let config = &checkpoint.config;
        let rows = |storage, tokens| row_bytes(&config.shape, storage, config.layers, tokens);
        let sequences = lineup.run.len() as u64 + 1;
        let bytes = rows(self.dtype, windows.window).saturating_mul(sequences);
        let prompt = rows(Storage::F32, windows.dense_prefix);
        checkpoint.expect_room(windows.window, bytes.saturating_add(prompt))
    }

    /// Refuses outputs that cannot be written or would overwrite an input.
    fn check_files(
        &self,
        interrupt: &Interrupt,
        files: &[PathBuf],
        checkpoint: &ModelFiles<'_>,
    ) -> Result<(), Failure> {
        let model_files = checkpoint.files();
        let read = files.iter().chain([&self.text]).chain(&self.sharing.results);
        let read: Vec<&Path> = read.chain(&model_files).map(PathBuf::as_path).collect();
        check_outputs_with(interrupt, &[("--json", self.json.as_ref())], &read)
    }

    /// Returns digests of everything that results depend on.
    fn digest_inputs(&self, entries: &[Entry]) -> Result<BTreeMap<String, String>, Failure> {
        let mut inputs = digest_pipelines(entries)?;
        inputs.insert("the model".into(), fingerprint(&self.model)?);
        inputs.insert("the text".into(), digest_of_file(&self.text)?);
        Ok(inputs)
    }

    /// Writes the JSON and prints the table.
    fn publish(
        &self,
        report: &PerplexityReport,
        lineup: &Lineup<Entry>,
        run: impl FnOnce() -> Result<Provenance, Failure>,
    ) -> Result<(), Failure> {
        let text = || table::show(&self.model, &self.text, report);
        let Some(path) = &self.json else { return say(&text()) };
        write_json(path, run, &lineup.with_left_out(report))?;
        if is_standard_output(path) { Ok(()) } else { say(&text()) }
    }
}

/// Returns the classes of tokens, if a pipeline needs them.
fn find_classes(
    checkpoint: &ModelFiles<'_>,
    entries: &[Entry],
) -> Result<Option<Classes>, Failure> {
    for entry in entries {
        if let Some(classes) = checkpoint.tokenizer.classes_for(&entry.pipeline)? {
            return Ok(Some(classes));
        }
    }
    Ok(None)
}
