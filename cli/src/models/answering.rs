//! Options of commands in which a model answers with a pipeline.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use vattention::Storage;
use vattention_evaluate::Setup;

use crate::backends::BackendArg;
use crate::models::chat_prompt::ChatPromptArgs;
use crate::models::prefill::PrefillArgs;
use crate::numbers::storage;

#[derive(Debug, clap::Args)]
pub(crate) struct AnsweringArgs {
    /// Model folder in Hugging Face's format (config.json, tokenizer.json, safetensors), or GGUF
    /// file.
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,
    /// Part of the prompt that dense attention reads: with dense-prompt (or a), the whole prompt,
    /// and the pipeline begins with the answer; with sparse-question (or b), the context, and the
    /// pipeline begins with the question.
    #[arg(long, default_value = DEFAULT_SETUP, value_name = "SETUP", value_parser = setup())]
    pub(crate) setup: Setup,
    #[command(flatten)]
    pub(crate) prefill: PrefillArgs,
    #[command(flatten)]
    pub(crate) chat: ChatPromptArgs,
    #[command(flatten)]
    pub(crate) machine: BackendArg,
    /// Number format of keys and values.
    #[arg(long, default_value_t = Storage::F32, value_parser = storage())]
    pub(crate) dtype: Storage,
}

const DEFAULT_SETUP: &str = setup_name(Setup::B);

/// Returns the name of a setup in options and printed text; in JSON, a setup is `a` or `b`.
pub(crate) const fn setup_name(setup: Setup) -> &'static str {
    match setup {
        Setup::A => "dense-prompt",
        Setup::B => "sparse-question",
    }
}

/// Returns a parser of setups, by name or by letter.
fn setup() -> impl TypedValueParser<Value = Setup> {
    let value = |setup: Setup| PossibleValue::new(setup_name(setup)).alias(setup.name());
    PossibleValuesParser::new([Setup::A, Setup::B].map(value)).map(|name| {
        let is_a = name == setup_name(Setup::A) || name == Setup::A.name();
        if is_a { Setup::A } else { Setup::B }
    })
}
