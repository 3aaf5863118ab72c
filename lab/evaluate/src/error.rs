//! Errors of evaluations.

use std::path::PathBuf;

/// Error of an evaluation. Each names the file or the pipeline, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text cannot be created.
    #[error(transparent)]
    Text(#[from] vattention_tasks::Error),
    /// The model cannot read a text.
    #[error(transparent)]
    Model(#[from] vattention_llm::Error),
    /// A pipeline cannot run with the model.
    #[error("{pipeline}: {source}")]
    Pipeline {
        /// Name of the pipeline.
        pipeline: String,
        /// Reason.
        source: Box<vattention_llm::Error>,
    },
    /// A pipeline cannot be tuned to a density, or results cannot be stored or are missing.
    #[error(transparent)]
    Experiment(#[from] vattention_experiments::Error),
    /// The operating system refuses a file.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file, as given.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A setting is wrong.
    #[error("{field}: {reason}")]
    Setting {
        /// Name of the setting.
        field: &'static str,
        /// Description of the fault, and what was expected.
        reason: String,
    },
    /// The threads of parallel cases cannot be started.
    #[error("cannot start threads for parallel cases: {0}")]
    Threads(rayon::ThreadPoolBuildError),
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn pipeline(name: String, source: vattention_llm::Error) -> Self {
        Self::Pipeline { pipeline: name, source: source.into() }
    }
}
