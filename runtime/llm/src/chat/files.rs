//! Files that chat templates and the texts of their special tokens are read from.

use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::gguf_file::Value as Metadata;
use serde_json::Value as Json;

use super::ChatTemplate;
use crate::files::{is_gguf, read_text};
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

/// Texts of the special tokens that templates insert; `None` for a token that the model lacks.
#[derive(Clone, Debug, Default)]
pub(super) struct SpecialTexts {
    pub(super) bos: Option<String>,
    pub(super) eos: Option<String>,
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

    /// Loads a template from a separate file. The files of the model define the texts of `<bos>`
    /// and `<eos>`; the model's own template is ignored.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] if a file or the template is invalid.
    pub fn open_file(template: &Path, model: &Path) -> Result<Self> {
        let texts = if is_gguf(model) {
            SpecialTexts::from_metadata(model, &Gguf::open(model)?.metadata)?
        } else {
            let path = model.join(CONFIG_FILE);
            SpecialTexts::from_config(&path, &read_config(&path)?)?
        };
        Self::new(template, None, &read_text(template)?, texts)
    }

    fn from_directory(dir: &Path) -> Result<Option<Self>> {
        let config_path = dir.join(CONFIG_FILE);
        let config = read_config(&config_path)?;
        let texts = SpecialTexts::from_config(&config_path, &config)?;
        let jinja_path = dir.join(JINJA_FILE);
        if let Some(source) = read(&jinja_path)? {
            return Self::new(&jinja_path, None, &source, texts).map(Some);
        }
        let source =
            find_template(&config).map_err(|reason| Error::checkpoint(&config_path, reason))?;
        source.map(|source| Self::new(&config_path, Some(CONFIG_KEY), source, texts)).transpose()
    }

    pub(super) fn from_metadata(
        path: &Path,
        metadata: &HashMap<String, Metadata>,
    ) -> Result<Option<Self>> {
        let source = TokenizerKeys(metadata).text(GGUF_KEY);
        let Some(source) = source.map_err(|reason| Error::checkpoint(path, reason))? else {
            return Ok(None);
        };
        let texts = SpecialTexts::from_metadata(path, metadata)?;
        Self::new(path, Some(GGUF_KEY), source, texts).map(Some)
    }
}

impl SpecialTexts {
    fn from_config(path: &Path, config: &Json) -> Result<Self> {
        let text = |key| special(config, key).map_err(|reason| Error::checkpoint(path, reason));
        Ok(Self { bos: text("bos_token")?, eos: text("eos_token")? })
    }

    fn from_metadata(path: &Path, metadata: &HashMap<String, Metadata>) -> Result<Self> {
        let refuse = |reason| Error::checkpoint(path, reason);
        let keys = TokenizerKeys(metadata);
        let tokens = keys.texts(TOKENS).map_err(refuse)?;
        let text = |key| {
            let token = keys.token(key, tokens.len()).map_err(refuse)?;
            Ok::<_, Error>(token.map(|token| tokens[token as usize].to_owned()))
        };
        Ok(Self { bos: text(BOS)?, eos: text(EOS)? })
    }
}

/// Reads `tokenizer_config.json`; a file that does not exist is `null`.
fn read_config(path: &Path) -> Result<Json> {
    let Some(text) = read(path)? else { return Ok(Json::Null) };
    serde_json::from_str(&text).map_err(|error| Error::checkpoint(path, error.to_string()))
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
fn find_template(config: &Json) -> Result<Option<&str>, String> {
    match &config[CONFIG_KEY] {
        Json::Null => Ok(None),
        Json::String(source) => Ok(Some(source)),
        Json::Array(named) => {
            let default = named.iter().find(|entry| entry["name"] == "default");
            let source = default.and_then(|entry| entry["template"].as_str());
            let refuse = || {
                format!("`{CONFIG_KEY}` has no template; expected one with the name \"default\"")
            };
            source.map(Some).ok_or_else(refuse)
        }
        _ => Err(format!("`{CONFIG_KEY}` is no template; expected a text or a list of them")),
    }
}
