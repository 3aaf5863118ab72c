//! Configurations of checkpoints: `config.json` and `generation_config.json`, or GGUF metadata.

use std::path::Path;

use crate::config::Config;
use crate::config::json::{GenerationFile, JsonKeys};
use crate::families::{self, DescribedFamily};
use crate::family::Multimodal;
use crate::files::{find_gguf, is_gguf, read_json};
use crate::twin::find_twin;
use crate::{Error, Result};

/// Expected files of a model, for error messages.
const EXPECTED: &str =
    "expected a folder with config.json, tokenizer.json and safetensors, or a GGUF file";

impl Config {
    /// Reads the configuration of a checkpoint, a directory or a GGUF file.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] with the file and the key.
    pub fn open(path: &Path) -> Result<Self> {
        if is_gguf(path) { Self::from_gguf(path) } else { Self::from_directory(path) }
    }

    fn from_directory(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        if dir.is_dir() && !path.exists() {
            let expected = find_gguf(dir).unwrap_or_else(|| EXPECTED.into());
            return Err(Error::checkpoint(dir, format!("no config.json; {expected}")));
        }
        let keys = JsonKeys::new(read_json(&path)?);
        let refuse = |reason: String| Error::checkpoint(&path, reason);
        let (family, keys) = if let Some((family, part)) = find_multimodal(&keys) {
            (family, keys.language_model(&part).map_err(refuse)?)
        } else {
            let family = find_family(&keys)
                .map_err(|reason| refuse(reason + &find_twin(dir, &keys).unwrap_or_default()))?;
            (family, keys)
        };
        let mut config = family.describe(&keys).map_err(refuse)?;
        config.ends = keys.ends().map_err(refuse)?;
        let generation = dir.join("generation_config.json");
        if generation.exists() {
            let generation: GenerationFile = read_json(&generation)?;
            if let Some(ends) = generation.eos_token_id {
                config.ends = ends.into();
            }
        }
        Ok(config)
    }
}

/// Finds the family of a multimodal model's language model by the name of the architecture.
fn find_multimodal(keys: &JsonKeys) -> Option<(DescribedFamily, Multimodal)> {
    let [name] = keys.architectures()[..] else { return None };
    families::find_multimodal(name)
}

/// Finds the family of a model by the name of its architecture.
fn find_family(keys: &JsonKeys) -> Result<DescribedFamily, String> {
    let known = families::names().join(", ");
    let [name] = keys.architectures()[..] else {
        let found = keys.architectures();
        return Err(format!("`architectures` is {found:?}; expected one of {known}"));
    };
    families::find(name)
        .ok_or_else(|| format!("the architecture {name} is not supported; expected one of {known}"))
}
