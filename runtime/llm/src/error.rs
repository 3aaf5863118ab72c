//! What can be wrong with a checkpoint, or with what a model is asked.

use std::path::{Path, PathBuf};

/// Every refusal of a checkpoint names the file and, where there is one, the tensor or key.
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
    /// The checkpoint is not whole, or not of a model that is known here.
    #[error("{}: {reason}", .path.display())]
    Checkpoint {
        /// The file, as it was given.
        path: PathBuf,
        /// What is wrong, where, and what was expected.
        reason: String,
    },
    /// A file that says how prompts are read is wrong.
    #[error("{}: {reason}", .path.display())]
    PrefillFile {
        /// The file, as it was given.
        path: PathBuf,
        /// What is wrong, where, and what was expected.
        reason: String,
    },
    /// Tokens or a setting that the model cannot take.
    #[error("{what}: {reason}")]
    Input {
        /// What is at fault.
        what: &'static str,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// A layer's attention cannot be built, or fails.
    #[error("attention of layer {layer}: {source}")]
    Attention {
        /// The layer.
        layer: usize,
        /// Why.
        source: vattention_core::Error,
    },
    /// A pipeline does not fit the model: it names layers that the model does not have.
    #[error("pipeline: {0}")]
    Pipeline(vattention_core::Error),
    /// An earlier failure left some layers a token ahead of the others.
    #[error("an earlier call has failed between two layers: the sequence cannot go on")]
    Lost,
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.into(), source }
    }

    pub(crate) fn checkpoint(path: &Path, reason: impl Into<String>) -> Self {
        Self::Checkpoint { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn input(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Input { what, reason: reason.into() }
    }
}
