//! Errors of training and calibration.

use std::path::{Path, PathBuf};

/// Error that names the wrong file or the wrong field of the settings.
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
        /// The fault, and the expected content.
        reason: String,
    },
    /// The selector does not accept the trained weights.
    #[error(transparent)]
    Selector(#[from] vattention_core::Error),
    /// The tensor library failed.
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
