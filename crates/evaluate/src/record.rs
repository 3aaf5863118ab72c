//! One answer, and what it depends on.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use vattention_core::PipelineConfig;
use vattention_experiments::{Bars, Violations};
use vattention_tasks::Task;

use crate::{Error, Result, Variant};

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Changes with everything that the answer depends on.
    pub digest: String,
    /// The variant's name.
    pub pipeline: String,
    /// The task's name.
    pub task: String,
    /// Tokens of the case.
    pub context: usize,
    /// The case's number.
    pub case: usize,
    /// What was answered, and how.
    #[serde(flatten)]
    pub attended: Answered,
}

/// What a pipeline answers, and what its attention did meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// RULER's, from 0 to 1.
    pub score: f64,
    /// The text.
    pub answer: String,
    /// Over all steps by the pipeline and all layers.
    pub attention: AttentionSummary,
}

/// What the attention of one answer read, and how far it was from dense attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttentionSummary {
    /// Rows: query heads of all layers at all steps.
    pub rows: usize,
    /// The mean share of the visible tokens that a KV head's query heads read together.
    pub density: f64,
    /// Of rows with a promise, those whose certificate holds.
    pub held: usize,
    /// `|out - dense| / |dense|`, if it was measured.
    pub error: Option<ErrorOf>,
    /// Error bars, where errors were measured.
    #[serde(default)]
    pub bars: Bars,
}

/// How far rows were from dense attention. An infinite error is `null` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorOf {
    /// The mean over rows of the output's relative error.
    #[serde(deserialize_with = "number")]
    pub mean: f64,
    /// The largest.
    #[serde(deserialize_with = "number")]
    pub max: f64,
    /// How often the pipeline's promise was violated, if it has one.
    pub violations: Option<Violations>,
}

/// A number, or infinity for `null`.
fn number<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

impl Record {
    pub(crate) fn new(
        digest: String,
        variant: &Variant,
        (task, context, case): (Task, usize, usize),
        attended: Answered,
    ) -> Self {
        Self { digest, pipeline: variant.name(), task: task.to_string(), context, case, attended }
    }
}

/// A digest of several parts.
#[derive(Default)]
pub(crate) struct Digest(Sha256);

impl Digest {
    pub(crate) fn add(self, part: &impl Serialize) -> Self {
        // What cannot be written as JSON, as maps with odd keys, is in none of the parts.
        self.add_text(&serde_json::to_string(part).unwrap_or_default())
    }

    pub(crate) fn add_pipeline(self, pipeline: &PipelineConfig) -> Self {
        self.add_text(&in_first_words(serde_json::to_string(pipeline).unwrap_or_default()))
    }

    fn add_text(mut self, text: &str) -> Self {
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text);
        self
    }

    pub(crate) fn finish(self) -> String {
        let bytes = self.0.finalize();
        let half = bytes.iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte));
        format!("{half:032x}")
    }
}

/// A pipeline's text with the values that two options had when the first answers were kept: these took hours, and are still
/// right.
fn in_first_words(text: String) -> String {
    ["codes", "labels"].iter().fold(text, |text, option| {
        text.replace(&format!("\"{option}\":\"head\""), &format!("\"{option}\":\"query-head\""))
            .replace(&format!("\"{option}\":\"group\""), &format!("\"{option}\":\"kv-head\""))
    })
}

/// What changes when a model does: of a directory, `config.json`, and names, sizes and times of the
/// other files that are read; of a GGUF file, all of its bytes.
///
/// # Errors
/// [`Error::File`].
pub fn fingerprint(model: &Path) -> Result<String> {
    if model.is_file() { digest(model) } else { fingerprint_of_directory(model) }
}

/// Digests of files, each made once.
#[derive(Debug, Default)]
pub struct Files(Mutex<HashMap<PathBuf, String>>);

impl Files {
    /// Of all bytes of a file.
    pub(crate) fn digest(&self, path: PathBuf) -> Result<String> {
        let mut digests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = digests.get(&path) {
            return Ok(known.clone());
        }
        let found = digest(&path)?;
        digests.insert(path, found.clone());
        Ok(found)
    }
}

/// The files that a pipeline names: what its selectors have learnt.
pub(crate) fn named_files(pipeline: &PipelineConfig) -> Vec<PathBuf> {
    fn find(tree: &Value, found: &mut Vec<PathBuf>) {
        match tree {
            Value::String(text) if Path::new(text).is_file() => found.push(text.into()),
            Value::Array(items) => items.iter().for_each(|item| find(item, found)),
            Value::Object(fields) => fields.values().for_each(|item| find(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    find(&serde_json::to_value(pipeline).unwrap_or_default(), &mut found);
    found
}

/// Of all bytes of a file.
fn digest(path: &Path) -> Result<String> {
    let failed = |source| Error::File { path: path.into(), source };
    let mut digest = Digest::default();
    std::io::copy(&mut fs::File::open(path).map_err(failed)?, &mut digest.0).map_err(failed)?;
    Ok(digest.finish())
}

fn fingerprint_of_directory(dir: &Path) -> Result<String> {
    let failed = |source| Error::File { path: dir.into(), source };
    let config = fs::read(dir.join("config.json")).map_err(failed)?;
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let read = ["tokenizer.json", "generation_config.json"].contains(&name.as_str());
        if name.ends_with(".safetensors") || read {
            // Links lead to where many caches keep the files.
            let metadata = fs::metadata(entry.path()).map_err(failed)?;
            let since = metadata.modified().ok().and_then(|it| it.duration_since(UNIX_EPOCH).ok());
            files.push((name, metadata.len(), since.map(|time| time.as_nanos().to_string())));
        }
    }
    files.sort();
    Ok(Digest::default().add(&config).add(&files).finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelines_are_digested_in_their_first_words() {
        let of = |text: &str| in_first_words(text.into());
        let now = r#"{"codes":"head","labels":"group","score":"head","name":"codes: head"}"#;
        let first =
            r#"{"codes":"query-head","labels":"kv-head","score":"head","name":"codes: head"}"#;
        assert_eq!(of(now), first);
        let other = r#"{"codes":"group","labels":"head"}"#;
        assert_eq!(of(other), r#"{"codes":"kv-head","labels":"query-head"}"#);
    }
}
