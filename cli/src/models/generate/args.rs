//! Options of `vattention generate`.

use std::path::PathBuf;

use vattention::{FallBack, Options};

use super::saved_session::SavedSessionArgs;
use crate::models::answering::AnsweringArgs;
use crate::models::sampling_args::SamplingArgs;
use crate::models::speculation_args::SpeculationArgs;
use crate::numbers::fall_back;
use crate::paths::is_standard_output;
use crate::pipelines::Changes;

const HELP: &str = "\
The model is a Llama, Mistral, Qwen2 or Qwen3, as a Hugging Face folder (config.json, \
tokenizer.json and safetensors) or a GGUF file. The model generates the most likely tokens, or \
draws tokens if --temperature is above 0, until it ends the text, a --stop occurs or --tokens is \
reached.

The steps of sampling have llama.cpp's order: --logit-bias, penalties, --top-k, --top-p, --min-p, \
--temperature. With --json-schema or --grammar, tokens that would break the schema or the grammar \
are excluded first. An answer that ends by --tokens or a --stop can then be incomplete.

Context and question are tokenized separately, and the question continues the context. With \
--chat, the two form one user message in the model's chat template; text of the template after \
the context belongs to the question. Without --chat, the model continues the plain text.

Setups: with dense-prompt (or a), dense attention reads context and question, and the pipeline \
begins with the answer. With sparse-question (or b), dense attention reads the context, and the \
pipeline begins with the question. --prefill replaces dense attention in this part.

--save-session saves the part of the prompt that dense attention has read, and --session continues \
from there, so that a document is read once; the answer is the same as without these options. The \
model, --dtype and --prefill must be those of the saved session, but a session in f32 also \
continues in f16, bf16 and q8. The pipeline may be another. A context given beside --session must \
begin with the saved one; its other tokens are then read, which needs --dtype f32 and a dense \
prefill. The file contains the text of the context.

With --steps, dense attention runs beside the pipeline to measure errors, and the answer is \
compared with the answer by dense attention after the same prefill, with the same seed. Times are \
not meaningful then. `vattention plot-steps` shows the file.

Ctrl-C stops the answer, and the report covers the steps until then.

JSON: answer and stop (end, stop for --stop and --stop-token, length, interrupted); with \
--logprobs: logprobs, for each token its text, log-probability and the most likely tokens; \
tokens; prefill_seconds; prefill_density, the share of the causal token-key pairs that was read; \
steps with the pipeline: count, median_seconds, attention_share (share of the time in attention), \
and select_share, sample_share and attend_share (shares of the threads' time in attention; null \
if the backend does not report them); with --speculate: drafts, with drafted and accepted tokens, \
and the time of a pass is divided equally among its tokens; memory, in bytes; density; layers: \
density, sampled, held and bar of each, as in the table. With --steps: beside, with compared \
(number of tokens of the answer, its end included) and same (number of tokens before the first \
that dense attention does not generate); bars, with rows that have an error bar and did not read \
all tokens, and the number whose error was outside.

--steps: model, pipeline, setup, beside, and steps: for each, tokens (length of the sequence), \
and for each layer error (the mean relative error of its query heads), density, bar (null if \
there is none), barred (number of query heads that have a bar and did not read all tokens) and \
outside (number of these whose error was larger than the bar).";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(super) answering: AnsweringArgs,
    /// Pipeline file, or the name of a built-in pipeline.
    #[arg(long, value_name = "FILE")]
    pub(super) pipeline: PathBuf,
    #[command(flatten)]
    pub(super) changes: Changes,
    /// Text file with the context.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["prompt", "session"])]
    pub(super) context: Option<PathBuf>,
    /// Context as text, instead of a file.
    #[arg(long, value_name = "TEXT", conflicts_with = "context")]
    pub(super) prompt: Option<String>,
    /// Question that continues the context; by default, the answer follows the context directly.
    #[arg(long, value_name = "TEXT")]
    pub(super) question: Option<String>,
    #[command(flatten)]
    pub(super) saved: SavedSessionArgs,
    /// Maximum number of tokens of the answer.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub(super) tokens: usize,
    /// Number of the sequence; other numbers draw other samples.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) sequence: u32,
    /// Condition under which all tokens are read instead of the pipeline's token list: by-count, if
    /// the list costs more by a fixed rule; by-clock, also if reading all tokens took less time in
    /// earlier steps.
    #[arg(long, default_value_t, value_parser = fall_back())]
    pub(super) fall_back: FallBack,
    /// Ignore tokens that end the text, and generate --tokens tokens.
    #[arg(long)]
    pub(super) ignore_eos: bool,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    /// Write to --json the log-probability of each token of the answer, and the N most likely
    /// tokens at its position.
    #[arg(long, value_name = "N", requires = "json")]
    pub(super) logprobs: Option<usize>,
    /// Print only the answer, without the report on standard error.
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Write the answer and the report as JSON; `-` writes to standard output instead of the
    /// answer.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write as JSON the error, density and error bar of each layer at every step with the
    /// pipeline, and the token at which the answer departs from dense attention's.
    #[arg(long, value_name = "FILE", conflicts_with = "speculate")]
    pub(super) steps: Option<PathBuf>,
}

impl GenerateArgs {
    /// Returns the files of the request.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let texts = self.context.iter().chain(&self.answering.prefill.prefill);
        let texts = texts.chain(&self.answering.chat.template).chain(&self.saved.session);
        texts.chain(self.sampling.files())
    }

    /// Returns the files that are written, with their options.
    pub(super) fn outputs(&self) -> [(&'static str, Option<&PathBuf>); 3] {
        [
            ("--json", self.json.as_ref()),
            ("--steps", self.steps.as_ref()),
            ("--save-session", self.saved.save_session.as_ref()),
        ]
    }

    /// Returns the options of attention.
    pub(super) fn options(&self) -> Options {
        Options {
            sequence: self.sequence,
            storage: self.answering.dtype,
            timed: true,
            fall_back: self.fall_back,
            rewindable: self.speculation.speculate,
            ..Options::default()
        }
    }

    /// Returns true if the JSON goes to standard output.
    pub(super) fn prints_json(&self) -> bool {
        self.json.as_deref().is_some_and(is_standard_output)
    }
}
