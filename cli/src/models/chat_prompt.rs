//! Options of prompts in a chat template.

use std::path::{Path, PathBuf};

use vattention_evaluate::ChatPrompt;
use vattention_llm::ChatTemplate;

use crate::fail::Failure;
use crate::models::checkpoint::ModelFiles;

#[derive(Debug, clap::Args)]
pub(crate) struct ChatPromptArgs {
    /// Put prompts into the model's chat template.
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message of the chat; by default, the template's own.
    #[arg(long, requires = "chat", value_name = "TEXT")]
    system: Option<String>,
    /// File of a chat template in Jinja, instead of the model's own.
    #[arg(long, requires = "chat", value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
}

impl ChatPromptArgs {
    /// Returns the chat template and the system message, if `--chat` is given.
    pub(crate) fn open_prompt(
        &self,
        checkpoint: &ModelFiles<'_>,
    ) -> Result<Option<ChatPrompt>, Failure> {
        if !self.chat {
            return Ok(None);
        }
        let template = open_template(self.template.as_deref(), checkpoint)?;
        Ok(Some(ChatPrompt { template, system: self.system.clone() }))
    }
}

/// Returns the chat template of a file, or the model's own.
pub(crate) fn open_template(
    file: Option<&Path>,
    checkpoint: &ModelFiles<'_>,
) -> Result<ChatTemplate, Failure> {
    if let Some(file) = file {
        return Ok(ChatTemplate::open_file(file, checkpoint.path())?);
    }
    checkpoint.chat_template()?.ok_or_else(|| {
        Failure::input(format!(
            "{} has no chat template; expected one in chat_template.jinja, tokenizer_config.json \
             or the metadata of a GGUF file, or in the file of --template",
            checkpoint.path().display()
        ))
    })
}
