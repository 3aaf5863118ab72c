//! Errors of traces.

use std::path::{Path, PathBuf};

/// Error of a trace. The message names the file and, if there is one, the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refuses a file.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file, as given.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The file is not a complete, consistent trace, or lacks data that is needed.
    #[error("{}: {reason}", .path.display())]
    Trace {
        /// The file, as given.
        path: PathBuf,
        /// Fault and its place, and what was expected.
        reason: String,
    },
    /// Synthetic heads cannot be created.
    #[error("{field}: {reason}")]
    Setting {
        /// Field of the settings.
        field: &'static str,
        /// Fault, and what was expected.
        reason: String,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates the error for a file that is not the expected trace.
    pub fn trace(path: &Path, reason: impl Into<String>) -> Self {
        Self::Trace { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.into(), source }
    }
}
