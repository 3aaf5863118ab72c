//! Prompts in the format that the model was trained on, by its chat template.

mod environment;
mod files;
mod messages;
mod split;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use chrono::NaiveDateTime;
use minijinja::{Environment, Value};
use serde_json::{Map, json};

use crate::{Error, Result};
use files::SpecialTexts;

pub use messages::ChatMessages;
pub use split::Chat;

/// Name of the template in the environment.
const NAME: &str = "chat_template";

/// Chat template of a model: a Jinja template, rendered as in Hugging Face transformers.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    /// Key of the template in its file, for error messages; `None` if the template is the whole
    /// file.
    key: Option<&'static str>,
    environment: Environment<'static>,
    source: String,
    texts: SpecialTexts,
}

impl ChatTemplate {
    fn new(
        path: &Path,
        key: Option<&'static str>,
        source: &str,
        texts: SpecialTexts,
    ) -> Result<Self> {
        Self::with_clock(path, key, source, texts, || chrono::Local::now().naive_local())
    }

    fn with_clock(
        path: &Path,
        key: Option<&'static str>,
        source: &str,
        texts: SpecialTexts,
        now: fn() -> NaiveDateTime,
    ) -> Result<Self> {
        let failed = |error: minijinja::Error| refuse(path, key, &error);
        let mut environment = environment::new(now).map_err(failed)?;
        let parsed = environment.add_template_owned(NAME, environment::rewrite(source));
        parsed.map_err(failed)?;
        Ok(Self { path: path.into(), key, environment, source: source.into(), texts })
    }

    /// Returns the text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation. The prompt contains the template's special tokens as text, including
    /// `<bos>`; [`Tokenizer::next`](crate::Tokenizer::next) converts it to tokens.
    ///
    /// # Errors
    /// [`Error::Input`] if a message, the tools or a variable is malformed, and
    /// [`Error::Checkpoint`] if the template raises an exception, fails, or exceeds its limit of
    /// steps.
    pub fn render_messages(&self, request: &ChatMessages<'_>) -> Result<String> {
        let variables = request.collect_variables(&self.texts)?;
        let render = || self.environment.get_template(NAME)?.render(Value::from(variables));
        let rendered =
            environment::with_deep_stack(render).map_err(|error| Error::file(&self.path, error))?;
        rendered.map_err(|error| refuse(&self.path, self.key, &error))
    }

    /// Renders a prompt from the system's message, if there is one, and the user's message, up to
    /// the beginning of the assistant's message; then appends `answer`, the beginning of the
    /// answer.
    ///
    /// # Errors
    /// The errors of [`render_messages`](Self::render_messages).
    pub fn render(&self, system: Option<&str>, user: &str, answer: &str) -> Result<String> {
        let mut messages = Vec::new();
        messages.extend(system.map(|text| json!({"role": "system", "content": text})));
        messages.push(json!({"role": "user", "content": user}));
        let mut prompt = self.render_messages(&ChatMessages {
            messages: &messages,
            tools: None,
            variables: &Map::new(),
            add_generation_prompt: true,
        })?;
        prompt.push_str(answer);
        Ok(prompt)
    }
}

fn refuse(path: &Path, key: Option<&str>, error: &minijinja::Error) -> Error {
    let key = key.map(|key| format!("`{key}`, ")).unwrap_or_default();
    let line = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    Error::checkpoint(path, format!("{key}{line}{message}"))
}
