//! Conversation of a user with a model.

use serde_json::{Map, Value, json};
use vattention_llm::{ChatMessages, ChatTemplate};

/// Messages so far, and the other inputs of the template.
pub(super) struct Conversation {
    pub(super) template: ChatTemplate,
    /// System message; `None` for the template's default.
    pub(super) system: Option<String>,
    /// Messages besides the system message.
    pub(super) messages: Vec<Value>,
    /// Tools that the model may call.
    pub(super) tools: Option<Value>,
    /// Variables of the template besides these.
    pub(super) variables: Map<String, Value>,
}

impl Conversation {
    /// Adds a message of the user.
    pub(super) fn push_question(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
    }

    /// Adds a message of the model.
    pub(super) fn push_answer(&mut self, text: &str) {
        self.messages.push(json!({"role": "assistant", "content": text}));
    }

    /// Removes the last message, which got no answer.
    pub(super) fn take_back(&mut self) {
        self.messages.pop();
    }

    /// Removes all messages except the system message.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }

    /// Returns the number of the model's answers.
    pub(super) fn count_answers(&self) -> usize {
        self.messages.iter().filter(|message| message["role"] == "assistant").count()
    }

    /// Renders the conversation up to the beginning of the next answer.
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::render_messages`].
    pub(super) fn render(&self) -> vattention_llm::Result<String> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.chain(self.messages.iter().cloned()).collect();
        self.template.render_messages(&ChatMessages {
            messages: &messages,
            tools: self.tools.as_ref(),
            variables: &self.variables,
            add_generation_prompt: true,
        })
    }
}
