//! What can be wrong with a trace or a comparison.

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
    /// The file is not a whole, consistent trace.
    #[error("{}: {reason}", .path.display())]
    Trace {
        /// The file, as it was given.
        path: PathBuf,
        /// What is wrong, where, and what was expected.
        reason: String,
    },
    /// A setting that does not fit the trace.
    #[error("{option}: {reason}")]
    Setting {
        /// The option, as on the command line.
        option: &'static str,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// A pipeline cannot run on the trace.
    #[error("{file}, on layer {layer}: {source}")]
    Pipeline {
        /// The pipeline's file or name.
        file: String,
        /// The trace's layer.
        layer: usize,
        /// Why not.
        source: vattention_core::Error,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.into(), source }
    }

    pub(crate) fn trace(path: &Path, reason: impl Into<String>) -> Self {
        Self::Trace { path: path.into(), reason: reason.into() }
    }
}
