//! Errors of experiments.

/// Error of an experiment. It names the file, the field of the settings, or the pipeline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A trace or another file is wrong.
    #[error(transparent)]
    Trace(#[from] vattention_trace::Error),
    /// A setting that does not fit the trace.
    #[error("{field}: {reason}")]
    Setting {
        /// Field of the settings.
        field: &'static str,
        /// Fault, and what was expected.
        reason: String,
    },
    /// A pipeline cannot run on the trace.
    #[error("{file}, on layer {layer}: {source}")]
    Pipeline {
        /// File or name of the pipeline.
        file: String,
        /// Layer of the trace.
        layer: usize,
        /// Reason.
        source: vattention_core::Error,
    },
    /// A pipeline needs the classes of tokens, which the trace does not contain.
    #[error(
        "{}: no tensor `layers.{layer}.classes`, and `{selector}` needs to know which tokens are \
         special or punctuation; expected a trace that says so, as `vattention capture` writes",
        .trace.display()
    )]
    Classes {
        /// The file, as given.
        trace: std::path::PathBuf,
        /// First layer without classes.
        layer: usize,
        /// Selector that needs the classes.
        selector: String,
    },
    /// A line of a file holds no results, or results of other work.
    #[error("{}, line {line}: {reason}", .path.display())]
    Results {
        /// The file, as given.
        path: std::path::PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Fault, and what was expected.
        reason: String,
    },
    /// Results are missing, and this run may not compute them.
    #[error("{0}")]
    Incomplete(crate::Incomplete),
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn trace(path: &std::path::Path, reason: impl Into<String>) -> Self {
        vattention_trace::Error::trace(path, reason).into()
    }
}
