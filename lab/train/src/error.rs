//! What can go wrong in training.

use std::path::{Path, PathBuf};

/// Every refusal names the file or the field of the settings that is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A trace, a file or a setting is wrong.
    #[error(transparent)]
    Trace(#[from] vattention_trace::Error),
    /// A checkpoint cannot be continued.
    #[error("{}: {reason}", .path.display())]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// The selector does not take what was trained.
    #[error(transparent)]
    Selector(#[from] vattention_core::Error),
    /// The tensor library fails.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn trace(path: &Path, reason: impl Into<String>) -> Self {
        vattention_trace::Error::Trace { path: path.into(), reason: reason.into() }.into()
    }

    pub(crate) fn setting(field: &'static str, reason: impl Into<String>) -> Self {
        vattention_trace::Error::Setting { field, reason: reason.into() }.into()
    }

    pub(crate) fn checkpoint(path: &Path, reason: impl Into<String>) -> Self {
        Self::Checkpoint { path: path.into(), reason: reason.into() }
    }
}
