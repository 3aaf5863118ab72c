//! Prompts in a chat template.

use vattention_llm::{Chat, ChatTemplate, Result, Tokenizer};

/// Chat template and system prompt of a chat model.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    /// Chat template of the model.
    pub template: ChatTemplate,
    /// System prompt; `None` for the template's default.
    pub system: Option<String>,
}

impl ChatPrompt {
    /// Tokenizes a user's message of `context` and `question`, and the beginning of the answer. The
    /// first part has the tokens up to the end of the context, the second part the rest. Unless the
    /// prompt `must_split` there, a template may change the texts; all tokens are then in the first
    /// part.
    ///
    /// # Errors
    /// If the template refuses the texts, the prompt must be split but the template does not
    /// contain the texts unchanged, or the texts cannot be tokenized.
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
