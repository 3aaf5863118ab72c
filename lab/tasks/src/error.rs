//! Errors of files, names and lengths.

use std::path::{Path, PathBuf};

/// Error of this crate, which names the file or the task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system reports an error for a file.
    #[error("{}: {source}", .path.display())]
    File {
        /// Path as the caller gave it.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file has a wrong content.
    #[error("{}: {reason}", .path.display())]
    Malformed {
        /// Path as the caller gave it.
        path: PathBuf,
        /// Description of the fault, its position, and what was expected.
        reason: String,
    },
    /// No task and no group has this name.
    #[error("there is no task `{name}`; expected one of {known}")]
    Unknown {
        /// The name.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// Even the shortest text of the task exceeds the limit.
    #[error("`{task}` does not fit in {tokens} tokens; expected {least} or more")]
    TooShort {
        /// Name of the task.
        task: &'static str,
        /// Limit in tokens.
        tokens: usize,
        /// Number of tokens of the shortest text, including its answer.
        least: usize,
    },
    /// The vocabulary lacks words for the task.
    #[error(
        "{}: the vocabulary has no words for `{task}`; expected niah_... or vt",
        .path.display()
    )]
    Wordless {
        /// File of the vocabulary.
        path: PathBuf,
        /// Name of the task.
        task: &'static str,
    },
    /// The folder has no file of a benchmark.
    #[error("{}: there is no such file; expected {expected}", .dir.display())]
    NoFile {
        /// Folder as the caller gave it.
        dir: PathBuf,
        /// Paths of the expected files in the folder.
        expected: String,
    },
    /// The task asks about a file that is missing.
    #[error("`{task}` asks about {what}; expected a file with them")]
    MissingUnit {
        /// Name of the task.
        task: &'static str,
        /// Expected content of the file.
        what: &'static str,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.into(), reason: reason.into() }
    }
}

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|source| Error::File { path: path.into(), source })?;
    utf8(path, 0, bytes)
}

/// Decodes UTF-8 bytes, which begin at an offset in a file.
pub(crate) fn utf8(path: &Path, offset: usize, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let place = offset + error.utf8_error().valid_up_to();
        Error::malformed(path, format!("byte {place} is not UTF-8; expected text"))
    })
}
