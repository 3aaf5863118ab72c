//! Digests of the inputs that results depend on.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use vattention_core::PipelineConfig;

use crate::Result;

/// A digest of several parts.
#[derive(Debug, Default)]
pub struct Digest(Sha256);

impl Digest {
    /// Extends the digest by a part, which is written as JSON.
    #[must_use]
    pub fn with(mut self, part: &impl Serialize) -> Self {
        // No part contains anything that JSON cannot represent, such as maps with odd keys.
        let text = serde_json::to_string(part).unwrap_or_default();
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text);
        self
    }

    /// Returns the first half of the SHA-256 digest, as 32 hexadecimal digits.
    pub fn finish(self) -> String {
        let bytes = self.0.finalize();
        let half = bytes.iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte));
        format!("{half:032x}")
    }
}

/// Digests of files, each computed once.
#[derive(Debug, Default)]
pub struct FileDigests(Mutex<HashMap<PathBuf, String>>);

impl FileDigests {
    /// Returns the digest of all bytes of a file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn digest(&self, path: PathBuf) -> Result<String> {
        let mut digests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = digests.get(&path) {
            return Ok(known.clone());
        }
        let found = digest_of_file(&path)?;
        digests.insert(path, found.clone());
        Ok(found)
    }

    /// Returns the digest of a resolved pipeline and of the files that it names.
    ///
    /// # Errors
    /// If one of these files cannot be read.
    pub fn digest_pipeline(&self, pipeline: &PipelineConfig) -> Result<String> {
        let mut digest = Digest::default().with(pipeline);
        for file in named_files(pipeline) {
            digest = digest.with(&self.digest(file)?);
        }
        Ok(digest.finish())
    }
}

/// Returns the files that a pipeline names: the calibrated parameters of its selectors.
pub fn named_files(pipeline: &PipelineConfig) -> Vec<PathBuf> {
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

/// Returns the digest of all bytes of a file.
///
/// # Errors
/// If the file cannot be read.
pub fn digest_of_file(path: &Path) -> Result<String> {
    let failed = |source| vattention_trace::Error::File { path: path.into(), source };
    let mut digest = Digest::default();
    std::io::copy(&mut fs::File::open(path).map_err(failed)?, &mut digest.0).map_err(failed)?;
    Ok(digest.finish())
}
