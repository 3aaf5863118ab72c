//! Options of `vattention generate`.

use std::path::PathBuf;

use vattention::FallBack;

use crate::models::answering::AnsweringArgs;
use crate::numbers::fall_back;
use crate::paths::is_standard_output;
use crate::pipelines::Changes;

const HELP: &str = "\
The model is a Hugging Face directory (config.json, tokenizer.json, and safetensors) or a GGUF \
file, of a Llama, Mistral, Qwen2 or Qwen3. It answers greedily, until it ends the text or there \
are --tokens.

Context and question are tokenized apart, the question as what goes on from the context. With \
--chat they are what a user says, one after the other, in the model's chat template; what the \
template puts after the context belongs to the question. Without it the model goes on from the \
text as it is.

Setups: a reads context and question by dense attention, and the pipeline begins with the \
answer; b reads the context by dense attention, and the pipeline begins with the question. With \
--prefill that is done by another strategy in place of dense attention.

With --steps, attention is dense beside, to know the errors, and the answer is compared with the \
one by dense attention after the same reading of the prompt: times tell little then. `vattention \
plot-steps` shows the file.

Ctrl-C ends the answer, and shows what was measured until then.

JSON: answer and stop (end, length, interrupted); tokens; prefill_seconds; prefill_density, the \
share of the causal pairs of tokens and keys that was read; steps, those by the pipeline: count, \
median_seconds, attention_share of their time, and of the time that threads spent there, \
select_share, sample_share and attend_share, null where the backend does not tell; memory, in \
bytes; density, and layers: of each its density, sampled, held and bar as the table shows them; \
with --steps beside: compared, how many tokens of the answer, its end among them, and same, how \
many before the first that dense attention would not give; and bars: rows that have an error bar \
and did not read everything, and how many errors were outside.

--steps: model, pipeline, setup, beside, and steps: of each tokens, how many the sequence had, \
and each layer's error (the mean relative error of its query heads), density and bar, null where \
there is none, how many of its query heads have one and did not read everything (barred), and \
whose error was larger (outside).";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(super) answering: AnsweringArgs,
    /// The pipeline file, or the name of a built-in pipeline.
    #[arg(long, value_name = "FILE")]
    pub(super) pipeline: PathBuf,
    #[command(flatten)]
    pub(super) changes: Changes,
    /// A file of text that is read first.
    #[arg(long, value_name = "FILE", required_unless_present = "prompt")]
    pub(super) context: Option<PathBuf>,
    /// The text itself, in place of a file.
    #[arg(long, value_name = "TEXT", conflicts_with = "context")]
    pub(super) prompt: Option<String>,
    /// A text that goes on from it; by default, the answer does.
    #[arg(long, value_name = "TEXT")]
    pub(super) question: Option<String>,
    /// Tokens of the answer, at most.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub(super) tokens: usize,
    /// The sequence's number: with another one, samples are drawn anew.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) sequence: u32,
    /// When to read everything in place of what the pipeline chose, because that is faster.
    #[arg(long, default_value_t, value_parser = fall_back())]
    pub(super) fall_back: FallBack,
    /// Take no token for the end of the answer: go on to --tokens.
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// Print the answer alone, without the report on standard error.
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Write the answer and the report as JSON; `-`: to standard output, in place of the answer.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write each layer's error, density and error bar at every step by the pipeline, and where the answer
    /// departs from that by dense attention, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) steps: Option<PathBuf>,
}

impl GenerateArgs {
    /// Returns whether the JSON goes to standard output.
    pub(super) fn prints_json(&self) -> bool {
        self.json.as_deref().is_some_and(is_standard_output)
    }
}
