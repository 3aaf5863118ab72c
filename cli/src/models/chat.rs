//! Prompts as a chat.

use vattention_evaluate::Talk;

use crate::fail::Failure;
use crate::models::checkpoint::ModelFiles;

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// Put prompts into the model's chat template.
    #[arg(long)]
    pub(crate) chat: bool,
    /// What the system says before the user; by default, what the template has it say.
    #[arg(long, requires = "chat", value_name = "TEXT")]
    system: Option<String>,
}

impl ChatArgs {
    /// The model's template, if there is to be a chat.
    pub(crate) fn talk(&self, checkpoint: &ModelFiles<'_>) -> Result<Option<Talk>, Failure> {
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
        Ok(Some(Talk { template, system: self.system.clone() }))
    }
}
