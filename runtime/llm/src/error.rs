//! Errors of checkpoints, and of the input to a model.

use std::path::{Path, PathBuf};

/// Error of this crate. Errors of a checkpoint name the file and, where possible, the tensor or
/// key.
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
    /// The checkpoint is incomplete, or of an unsupported model.
    #[error("{}: {reason}", .path.display())]
    Checkpoint {
        /// Path as the caller gave it.
        path: PathBuf,
        /// Description of the fault, its position, and what was expected.
        reason: String,
    },
    /// A file of prefill options is wrong.
    #[error("{}: {reason}", .path.display())]
    PrefillFile {
        /// Path as the caller gave it.
        path: PathBuf,
        /// Description of the fault, its position, and what was expected.
        reason: String,
    },
    /// A file is not a saved session, is damaged, or does not fit the session that would continue
    /// from it.
    #[error("{}: {reason}", .path.display())]
    SavedSession {
        /// Path as the caller gave it.
        path: PathBuf,
        /// Description of the fault, and what was expected.
        reason: String,
    },
    /// A session could not be written to its output.
    #[error("saving the session: {0}")]
    Write(std::io::Error),
    /// The model cannot take the tokens or a setting.
    #[error("{what}: {reason}")]
    Input {
        /// Name of the wrong input.
        what: &'static str,
        /// Description of the fault, and what was expected.
        reason: String,
    },
    /// A grammar is invalid or not supported, or no token of the vocabulary continues its text.
    #[error("{name}: {reason}")]
    Grammar {
        /// Name of the grammar's kind: `json_schema`, `json_object`, `grammar` (Lark) or `regex`.
        name: &'static str,
        /// Description of the fault.
        reason: String,
    },
    /// The attention of a layer cannot be started, or fails.
    #[error("attention of layer {layer}: {source}")]
    Attention {
        /// Number of the layer.
        layer: usize,
        /// Error of the attention.
        source: vattention_core::Error,
    },
    /// A pipeline does not fit the model: it names layers that the model does not have.
    #[error("pipeline: {0}")]
    Pipeline(vattention_core::Error),
    /// An earlier failure left some layers a token ahead of the others.
    #[error("an earlier call has failed between two layers: the sequence cannot continue")]
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

    pub(crate) fn saved_session(path: &Path, reason: impl Into<String>) -> Self {
        Self::SavedSession { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn input(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Input { what, reason: reason.into() }
    }
}
