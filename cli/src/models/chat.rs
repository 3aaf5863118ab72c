//! Options of prompts in a chat template.

use vattention_evaluate::ChatPrompt;

use crate::fail::Failure;
use crate::models::checkpoint::ModelFiles;

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// Put prompts into the model's chat template.
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message of the chat; by default, the template's own.
    #[arg(long, requires = "chat", value_name = "TEXT")]
    system: Option<String>,
}

impl ChatArgs {
    /// Returns the model's chat template and the system message, if `--chat` is given.
    pub(crate) fn open_prompt(
        &self,
        checkpoint: &ModelFiles<'_>,
    ) -> Result<Option<ChatPrompt>, Failure> {
        if !self.chat {
            return Ok(None);
        }
        let Some(template) = checkpoint.chat_template()? else {
            return Err(Failure::input(format!(
                "--chat: {} has no chat template; expected one in chat_template.jinja, \
                 tokenizer_config.json or the metadata of a GGUF file",
                checkpoint.path().display()
            )));
        };
        Ok(Some(ChatPrompt { template, system: self.system.clone() }))
    }
}
