//! Options of commands in which a model answers by a pipeline.

use std::path::PathBuf;

use vattention::Storage;
use vattention_evaluate::Setup;

use crate::backends::BackendArg;
use crate::models::chat::ChatArgs;
use crate::models::prefill::PrefillArgs;
use crate::numbers::storage;

#[derive(Debug, clap::Args)]
pub(crate) struct AnsweringArgs {
    /// A model's folder as Hugging Face has it (config.json, tokenizer.json, safetensors), or a GGUF
    /// file.
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,
    /// Where the pipeline begins. a: with the answer; b: with the question.
    #[arg(long, default_value_t = Setup::B, value_name = "A|B")]
    pub(crate) setup: Setup,
    #[command(flatten)]
    pub(crate) prefill: PrefillArgs,
    #[command(flatten)]
    pub(crate) chat: ChatArgs,
    #[command(flatten)]
    pub(crate) machine: BackendArg,
    /// How keys and values are stored.
    #[arg(long, default_value_t = Storage::F32, value_parser = storage())]
    pub(crate) dtype: Storage,
}
