//! Files of a model and texts for it, checked before the weights are loaded.

use std::fs;
use std::path::{Path, PathBuf};

use vattention::experiments::available_memory;
use vattention::{Shape, Storage};
use vattention_llm::{ChatTemplate, Config, Model, Tokenizer, weight_bytes, weight_files};

use crate::fail::{Failure, note};

/// Configuration and tokenizer of a model, from a Hugging Face folder or a GGUF file.
pub(crate) struct ModelFiles<'a> {
    path: &'a Path,
    pub(crate) config: Config,
    pub(crate) tokenizer: Tokenizer,
    /// Files that contain the weights.
    weight_files: Vec<PathBuf>,
    /// Bytes that the weights need in memory.
    pub(crate) weight_bytes: u64,
}

/// Returns the layers of a model, and their shapes.
pub(crate) fn layers(config: &Config) -> Vec<(usize, Shape)> {
    (0..config.layers).map(|layer| (layer, config.shape)).collect()
}

/// Refuses a path that does not exist. A name of the Hugging Face Hub is such a path.
pub(crate) fn expect_exists(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    let hub = hub_folder(path).map(|name| {
        format!(
            ". Nothing is downloaded; for a model of the Hugging Face Hub, run `hf download {} \
             --local-dir {name}` and give `--model {name}`",
            path.display()
        )
    });
    Err(Failure::input(format!(
        "--model {}: no such file or folder; expected a folder with config.json, tokenizer.json \
         and safetensors, or a GGUF file{}",
        path.display(),
        hub.unwrap_or_default()
    )))
}

/// Returns the model's name without its owner, if a path has the form `OWNER/MODEL`.
fn hub_folder(path: &Path) -> Option<&str> {
    let (owner, name) = path.to_str()?.split_once('/')?;
    let is_name = |part: &str| {
        let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(letter)
    };
    let is_file = [".gguf", ".safetensors", ".bin"].iter().any(|end| name.ends_with(end));
    let elsewhere = Path::new(owner).exists() || is_file;
    (is_name(owner) && is_name(name) && !elsewhere).then_some(name)
}

impl<'a> ModelFiles<'a> {
    /// Reads the configuration and the tokenizer.
    pub(crate) fn open(path: &'a Path) -> Result<Self, Failure> {
        expect_exists(path)?;
        let config = Config::open(path)?;
        let (weight_bytes, weight_files) = (weight_bytes(path)?, weight_files(path)?);
        let tokenizer = Tokenizer::open(path, &config)?;
        Ok(Self { path, config, tokenizer, weight_files, weight_bytes })
    }

    /// Returns the files that no output may overwrite.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        if self.path.is_file() {
            return self.weight_files.clone();
        }
        let entries = fs::read_dir(self.path).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
    }

    /// Returns the files from which the model and its tokenizer are read.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        const NAMES: [&str; 5] = [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ];
        let is_read = |path: &PathBuf| {
            let weights = path.extension().is_some_and(|extension| extension == "safetensors");
            let named = NAMES.iter().any(|name| path.ends_with(name));
            weights || named || self.weight_files.contains(path)
        };
        self.files().into_iter().filter(is_read).collect()
    }

    /// Refuses sequences with more tokens than the model supports. The error names the file with
    /// the limit.
    pub(crate) fn check_length(&self, tokens: usize) -> Result<(), String> {
        let named = |error| format!("{}: {error}", self.path.display());
        self.config.check_length(tokens).map_err(named)
    }

    /// Returns the layers, and their shapes.
    pub(crate) fn layers(&self) -> Vec<(usize, Shape)> {
        layers(&self.config)
    }

    /// Reads the chat template, if there is one.
    pub(crate) fn chat_template(&self) -> Result<Option<ChatTemplate>, Failure> {
        Ok(ChatTemplate::open(self.path)?)
    }

    /// Returns true if there is a chat template; the model then expects prompts in this template.
    pub(crate) fn has_chat_template(&self) -> bool {
        !matches!(ChatTemplate::open(self.path), Ok(None))
    }

    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    /// Loads the weights.
    pub(crate) fn load(&self) -> Result<Model, Failure> {
        let model = Model::open(self.path)?;
        self.note_untied(&model);
        Ok(model)
    }

    /// Prints a note if the configuration ties weights that differ.
    pub(crate) fn note_untied(&self, model: &Model) {
        if self.config.tied && !model.config().tied {
            note(&format!(
                "{}: `tie_word_embeddings` is true, but `lm_head.weight` differs from the \
                 embeddings; both are used, as in transformers",
                self.path.display()
            ));
        }
    }

    /// Refuses work whose weights, and `rows` bytes of keys and values of `tokens` tokens, exceed
    /// the memory that the system reports as available.
    pub(crate) fn expect_room(&self, tokens: usize, rows: u64) -> Result<(), Failure> {
        let needed = self.weight_bytes.saturating_add(rows);
        match available_memory() {
            Some(available) if needed > available => Err(Failure::input(format!(
                "{}: {needed} bytes of memory needed, {} for the weights and {rows} for keys and \
                 values of {tokens} tokens; {available} are available",
                self.path.display(),
                self.weight_bytes
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns the bytes of keys and values of `tokens` tokens in `layers` layers.
pub(crate) fn row_bytes(shape: &Shape, storage: Storage, layers: usize, tokens: usize) -> u64 {
    let row = vattention::experiments::row_bytes(shape, storage);
    let token = row.saturating_mul(shape.kv_heads as u64);
    token.saturating_mul(layers as u64).saturating_mul(tokens as u64)
}

/// Reads the text file that an option names, and refuses an empty one.
pub(crate) fn read_text(option: &str, path: &Path) -> Result<String, Failure> {
    let refuse = |reason: String| Failure::input(format!("{option} {}: {reason}", path.display()));
    let bytes = fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        refuse(format!("not UTF-8 at byte {place}; expected a text in UTF-8"))
    })?;
    if text.trim().is_empty() {
        return Err(refuse("empty; expected a text".into()));
    }
    Ok(text)
}
