//! Options of `vattention chat`.

use std::path::PathBuf;

use serde_json::{Map, Value};
use vattention::Storage;

use super::messages::parse_variables;
use crate::backends::BackendArg;
use crate::models::sampling_args::SamplingArgs;
use crate::models::speculation_args::SpeculationArgs;
use crate::numbers::storage;
use crate::paths::is_standard_output;
use crate::pipelines::Changes;

const HELP: &str = "\
Each line of standard input is a message; a line that ends in a backslash continues on the next \
one. At a terminal, pasted text can have several lines, and arrow keys recall earlier messages. \
Ctrl-C ends an answer or clears the line; a second Ctrl-C during an answer ends the program, as \
Ctrl-D does at the prompt. Through a pipe, standard output has only the answers and the output of \
commands, and an error ends the program.

Commands:
  /pipeline FILE  answer with another pipeline, given by file or name
  /reset          begin a new conversation
  /stats          show tokens, speed, density, promises and memory
  /help           list the commands
  /quit           end the program

Dense attention reads the first message and, after /pipeline, the whole conversation. The pipeline \
computes the answers, and reads the later messages. If the chat template changes earlier messages, \
for example by removing a model's reasoning, dense attention reads the conversation again, and a \
note reports it.

The defaults of sampling are llama.cpp's; --temperature 0 always chooses the most likely token. \
The seed of the n-th answer is --seed + n - 1.

--messages answers the last message of a file: a JSON list of messages with role and content, or \
an object with messages, tools and chat_template_kwargs. --json then writes the fields of \
`vattention generate --json`.";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
#[command(mut_arg("temperature", |arg| arg.default_value("0.8")))]
#[command(mut_arg("top_k", |arg| arg.default_value("40")))]
#[command(mut_arg("top_p", |arg| arg.default_value("0.95")))]
#[command(mut_arg("min_p", |arg| arg.default_value("0.05")))]
pub(crate) struct ChatArgs {
    /// Model folder in Hugging Face's format (config.json, tokenizer.json, safetensors), or GGUF
    /// file.
    #[arg(long, value_name = "PATH")]
    pub(super) model: PathBuf,
    /// Pipeline file, or the name of a built-in pipeline.
    #[arg(long, default_value = "dense", value_name = "FILE")]
    pub(super) pipeline: PathBuf,
    #[command(flatten)]
    pub(super) changes: Changes,
    /// System message; by default, the template's own.
    #[arg(long, value_name = "TEXT", conflicts_with = "messages")]
    pub(super) system: Option<String>,
    /// File of a chat template in Jinja, instead of the model's own.
    #[arg(long, value_name = "FILE")]
    pub(super) template: Option<PathBuf>,
    /// JSON object with more variables for the template, such as {"enable_thinking": false}.
    #[arg(long, value_name = "JSON", value_parser = parse_variables)]
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
    /// Answer the last message of this JSON file, instead of reading standard input.
    #[arg(long, value_name = "FILE")]
    pub(super) messages: Option<PathBuf>,
    /// Write the answer to --messages and a report as JSON; `-` writes to standard output instead
    /// of the answer.
    #[arg(long, value_name = "FILE", requires = "messages")]
    pub(super) json: Option<PathBuf>,
    /// Maximum number of tokens of an answer; by default, as many as fit into the context.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) tokens: Option<usize>,
    /// Maximum number of tokens of a conversation; by default, the model's context.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) context_size: Option<usize>,
    #[command(flatten)]
    pub(super) machine: BackendArg,
    /// Number format of keys and values.
    #[arg(long, default_value_t = Storage::F32, value_parser = storage())]
    pub(super) dtype: Storage,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
}

impl ChatArgs {
    /// Returns true if the JSON goes to standard output.
    pub(super) fn prints_json(&self) -> bool {
        self.json.as_deref().is_some_and(is_standard_output)
    }

    /// Returns the files that are read besides model and pipeline.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.template.iter().chain(&self.messages).chain(self.sampling.files())
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().map_err(|_| "expected a whole number of at least 1")?;
    if number == 0 { Err("expected at least 1".into()) } else { Ok(number) }
}
