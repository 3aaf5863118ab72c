//! Prompts in the format that the model was trained on, by its chat template.

mod environment;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value as Metadata;
use minijinja::{Environment, Value, context};
use serde_json::Value as Json;

use crate::files::is_gguf;
use crate::gguf::Gguf;
use crate::gguf::tokenizer::keys::TokenizerKeys;
use crate::gguf::tokenizer::{BOS, EOS, TOKENS};
use crate::{Error, Result};

/// Key of the template in GGUF metadata.
const GGUF_KEY: &str = "tokenizer.chat_template";
/// File of a directory that is a template as a whole.
const JINJA_FILE: &str = "chat_template.jinja";
/// File of a directory that has the texts of special tokens, and may have the template.
const CONFIG_FILE: &str = "tokenizer_config.json";
/// Key of the template in `CONFIG_FILE`.
const CONFIG_KEY: &str = "chat_template";
/// Name of the template in the environment.
const NAME: &str = "chat_template";

/// Chat template of a model: a Jinja template, rendered as in Hugging Face transformers, without
/// tools and documents.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    /// Key of the template in its file, for error messages; `None` if the template is the whole
    /// file.
    key: Option<&'static str>,
    environment: Environment<'static>,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
}

/// Prompt in two parts, whose concatenation is the whole prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    /// Prompt up to the end of the context.
    pub before: String,
    /// Rest of the prompt: the question and the beginning of the answer.
    pub after: String,
}

impl ChatTemplate {
    /// Loads the template of a model. A GGUF file has it in its metadata. A directory has it in
    /// `chat_template.jinja`, or otherwise in `chat_template` of `tokenizer_config.json`, which
    /// also defines the texts of `<bos>` and `<eos>`. Returns `None` if there is no template.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] if a file or the template is invalid.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        if is_gguf(path) {
            Self::from_metadata(path, &Gguf::open(path)?.metadata)
        } else {
            Self::from_directory(path)
        }
    }

    fn from_directory(dir: &Path) -> Result<Option<Self>> {
        let config_path = dir.join(CONFIG_FILE);
        let config = match read(&config_path)? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| Error::checkpoint(&config_path, error.to_string()))?,
            None => Json::Null,
        };
        let refuse = |reason| Error::checkpoint(&config_path, reason);
        let bos = special(&config, "bos_token").map_err(refuse)?;
        let eos = special(&config, "eos_token").map_err(refuse)?;
        let jinja_path = dir.join(JINJA_FILE);
        if let Some(source) = read(&jinja_path)? {
            return Self::new(&jinja_path, None, source, bos, eos).map(Some);
        }
        let source = find_template(&config).map_err(refuse)?;
        source.map(|source| Self::new(&config_path, Some(CONFIG_KEY), source, bos, eos)).transpose()
    }

    fn from_metadata(path: &Path, metadata: &HashMap<String, Metadata>) -> Result<Option<Self>> {
        let refuse = |reason| Error::checkpoint(path, reason);
        let keys = TokenizerKeys(metadata);
        let Some(source) = keys.text(GGUF_KEY).map_err(refuse)? else { return Ok(None) };
        let tokens = keys.texts(TOKENS).map_err(refuse)?;
        let special = |key| {
            let token = keys.token(key, tokens.len()).map_err(refuse)?;
            Ok::<_, Error>(token.map(|token| tokens[token as usize].to_owned()))
        };
        Self::new(path, Some(GGUF_KEY), source.to_owned(), special(BOS)?, special(EOS)?).map(Some)
    }

    fn new(
        path: &Path,
        key: Option<&'static str>,
        source: String,
        bos: Option<String>,
        eos: Option<String>,
    ) -> Result<Self> {
        let failed = |error: minijinja::Error| refuse(path, key, &error);
        let now = || chrono::Local::now().naive_local();
        let mut environment = environment::new(now).map_err(failed)?;
        let parsed = environment.add_template_owned(NAME, environment::rewrite(&source));
        parsed.map_err(failed)?;
        Ok(Self { path: path.into(), key, environment, source, bos, eos })
    }

    /// Renders a prompt from the system's message, if there is one, and the user's message, up to
    /// the beginning of the assistant's message; then appends `answer`, the beginning of the
    /// answer.
    ///
    /// The prompt contains the template's special tokens as text, including `<bos>`;
    /// [`Tokenizer::next`](crate::Tokenizer::next) converts it to tokens.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the template raises an exception, fails, or exceeds its limit of
    /// steps.
    pub fn render(&self, system: Option<&str>, user: &str, answer: &str) -> Result<String> {
        let message = |role, content| context! { role, content };
        let messages: Vec<Value> = system
            .map(|content| message("system", content))
            .into_iter()
            .chain([message("user", user)])
            .collect();
        let mut variables = BTreeMap::from([
            ("messages", Value::from(messages)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(true)),
        ]);
        variables.extend(self.bos.as_deref().map(|text| ("bos_token", Value::from(text))));
        variables.extend(self.eos.as_deref().map(|text| ("eos_token", Value::from(text))));
        let render = || self.environment.get_template(NAME)?.render(Value::from(variables));
        let rendered =
            environment::with_deep_stack(render).map_err(|error| Error::file(&self.path, error))?;
        let mut prompt = rendered.map_err(|error| refuse(&self.path, self.key, &error))?;
        prompt.push_str(answer);
        Ok(prompt)
    }

    /// Renders a context and a question, and splits the prompt like [`split`](Self::split). If the
    /// end of the context cannot be found in the prompt, the whole prompt is `before`.
    ///
    /// # Errors
    /// The errors of [`render`](Self::render).
    pub fn split_if_shown(
        &self,
        system: Option<&str>,
        context: &str,
        question: &str,
        answer: &str,
    ) -> Result<Chat> {
        self.split(system, context, question, answer).or_else(|_| {
            let before = self.render(system, &[context, question].concat(), answer)?;
            Ok(Chat { before, after: String::new() })
        })
    }

    /// Renders a user's message of a context and a question about it, and splits the prompt at the
    /// end of the context.
    ///
    /// # Errors
    /// The errors of [`render`](Self::render), and [`Error::Checkpoint`] if the end of the context
    /// cannot be found in the prompt, because the template omits, repeats or changes the user's
    /// text.
    pub fn split(
        &self,
        system: Option<&str>,
        context: &str,
        question: &str,
        answer: &str,
    ) -> Result<Chat> {
        let whole = self.render(system, &[context, question].concat(), answer)?;
        let mark = mark(&[&self.source, &whole, context, question, answer]);
        for (context, question) in context_ends(context, question) {
            let marked = self.render(system, &[context, &mark, question].concat(), answer)?;
            let mut parts = marked.split(&mark);
            let (Some(before), Some(after), None) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let shown = before.ends_with(context.trim_start());
            if shown && whole.strip_prefix(before) == Some(after) {
                return Ok(Chat { before: before.into(), after: after.into() });
            }
        }
        let prefix = self.key.map(|key| format!("`{key}`: ")).unwrap_or_default();
        let reason = format!("{prefix}the end of the context cannot be found in the prompt");
        let expected = "expected a template that contains the user's text once and unchanged";
        Err(Error::checkpoint(&self.path, format!("{reason}; {expected}")))
    }
}

/// Returns a text that none of the others contains. Inserted at the end of the context, it marks
/// the place in the prompt even if the context's text occurs elsewhere too.
fn mark(texts: &[&str]) -> String {
    let mut mark = String::from('\u{E000}');
    while texts.iter().any(|text| text.contains(&mark)) {
        mark.push('\u{E001}');
    }
    mark
}

/// Returns the context and the question: unchanged, and trimmed as by a template that trims the
/// user's message. With the mark between them, such a template would not trim the inner ends.
fn context_ends<'t>(
    context: &'t str,
    question: &'t str,
) -> impl Iterator<Item = (&'t str, &'t str)> {
    let trimmed = match (context.trim().is_empty(), question.trim().is_empty()) {
        (true, true) => Some(("", "")),
        (true, false) => Some(("", question.trim_start())),
        (false, true) => Some((context.trim_end(), "")),
        (false, false) => None,
    };
    [(context, question)].into_iter().chain(trimmed)
}

fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(path, error)),
    }
}

/// Text of a special token: a string in old files, otherwise an object with `content`.
fn special(config: &Json, key: &str) -> Result<Option<String>, String> {
    match &config[key] {
        Json::Null => Ok(None),
        Json::String(text) => Ok(Some(text.clone())),
        token => match &token["content"] {
            Json::String(text) => Ok(Some(text.clone())),
            _ => Err(format!("`{key}` is no token; expected a text or an object with `content`")),
        },
    }
}

/// Template of tokenizer_config.json: a text, or one of several named texts.
fn find_template(config: &Json) -> Result<Option<String>, String> {
    match &config[CONFIG_KEY] {
        Json::Null => Ok(None),
        Json::String(source) => Ok(Some(source.clone())),
        Json::Array(named) => {
            let default = named.iter().find(|entry| entry["name"] == "default");
            let source = default.and_then(|entry| entry["template"].as_str());
            let refuse = || {
                format!("`{CONFIG_KEY}` has no template; expected one with the name \"default\"")
            };
            source.map(|source| Some(source.to_owned())).ok_or_else(refuse)
        }
        _ => Err(format!("`{CONFIG_KEY}` is no template; expected a text or a list of them")),
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
