//! What can be wrong with a file, a name or a length.

use std::path::{Path, PathBuf};

/// Every refusal names the file or the task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refuses a file.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file, as it was given.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", .path.display())]
    Malformed {
        /// The file, as it was given.
        path: PathBuf,
        /// What is wrong, where, and what was expected.
        reason: String,
    },
    /// A name of no task and no group.
    #[error("there is no task `{name}`; expected one of {known}")]
    Unknown {
        /// The name.
        name: String,
        /// All names, with commas.
        known: String,
    },
    /// Not even the shortest text of the task fits.
    #[error("`{task}` does not fit in {tokens} tokens; expected {least} or more")]
    TooShort {
        /// The task.
        task: &'static str,
        /// The tokens there are.
        tokens: usize,
        /// The tokens of the shortest text, with the room for its answer.
        least: usize,
    },
    /// The vocabulary cannot say the task.
    #[error("{}: the vocabulary has no words for `{task}`; expected niah_... or vt", .path.display())]
    Wordless {
        /// The vocabulary's file.
        path: PathBuf,
        /// The task.
        task: &'static str,
    },
    /// A folder has no file of a benchmark.
    #[error("{}: there is no such file; expected {expected}", .dir.display())]
    NoFile {
        /// The folder, as it was given.
        dir: PathBuf,
        /// The files, by their paths in the folder.
        expected: String,
    },
    /// The task asks about a file that was not given.
    #[error("`{task}` asks about {what}; expected a file with them")]
    Missing {
        /// The task.
        task: &'static str,
        /// What the file should have.
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

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|source| Error::File { path: path.into(), source })?;
    utf8(path, 0, bytes)
}

/// The text of bytes that begin somewhere in a file.
pub(crate) fn utf8(path: &Path, begins: usize, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let place = begins + error.utf8_error().valid_up_to();
        Error::malformed(path, format!("byte {place} is not UTF-8; expected text"))
    })
}
