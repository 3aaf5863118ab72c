//! What can be wrong with an experiment.

/// Every refusal names the file, the field of the settings or the pipeline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A trace or another file is wrong.
    #[error(transparent)]
    Trace(#[from] vattention_trace::Error),
    /// A setting that does not fit the trace.
    #[error("{field}: {reason}")]
    Setting {
        /// The field of the settings.
        field: &'static str,
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
    /// A trace does not say what its tokens are in the text, and a pipeline needs to know it.
    #[error(
        "{}: no tensor `layers.{layer}.classes`, and `{selector}` needs to know which tokens are special or punctuation; \
         expected a trace that says so, as `vattention capture` writes",
        .trace.display()
    )]
    Classes {
        /// The file, as it was given.
        trace: std::path::PathBuf,
        /// The first layer without.
        layer: usize,
        /// The selector that needs it.
        selector: String,
    },
    /// A line of a file does not hold results, or those of other work.
    #[error("{}, line {line}: {reason}", .path.display())]
    Results {
        /// The file, as it was given.
        path: std::path::PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// Not all results are there, and this run may not compute the others.
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
