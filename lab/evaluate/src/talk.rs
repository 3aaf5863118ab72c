//! Prompts as a chat.

use vattention_llm::{Chat, ChatTemplate, Result, Tokenizer};

/// How a model that chats is spoken to.
#[derive(Clone, Debug)]
pub struct Talk {
    /// The model's.
    pub template: ChatTemplate,
    /// What the system says before the user; `None`: what the template has it say.
    pub system: Option<String>,
}

impl Talk {
    /// The tokens of what a user says, `context` and then `question`, up to the end of the context,
    /// and of the rest with the beginning of the answer. Unless the prompt `must_split` there, a
    /// template may change the texts; all tokens are then in the first part.
    ///
    /// # Errors
    /// If the template refuses the texts or does not show them where it must, or if the texts
    /// cannot be tokenized.
    pub fn tokens(
        &self,
        tokenizer: &Tokenizer,
        context: &str,
        question: &str,
        answer: &str,
        must_split: bool,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let (system, template) = (self.system.as_deref(), &self.template);
        let Chat { before, after } = if must_split {
            template.split(system, context, question, answer)?
        } else {
            template.split_if_shown(system, context, question, answer)?
        };
        Ok((tokenizer.next(&before)?, tokenizer.next(&after)?))
    }
}
