//! What can be wrong with a trace.

use std::path::{Path, PathBuf};

/// Every refusal names the file and, where there is one, the tensor.
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
    /// The file is not a whole, consistent trace, or lacks what is asked of it.
    #[error("{}: {reason}", .path.display())]
    Trace {
        /// The file, as it was given.
        path: PathBuf,
        /// What is wrong, where, and what was expected.
        reason: String,
    },
    /// Heads that cannot be made.
    #[error("{field}: {reason}")]
    Setting {
        /// The field of the settings.
        field: &'static str,
        /// What is wrong and what was expected.
        reason: String,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A file that is not the trace that was expected.
    pub fn trace(path: &Path, reason: impl Into<String>) -> Self {
        Self::Trace { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.into(), source }
    }
}
