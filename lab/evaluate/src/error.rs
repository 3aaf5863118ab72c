//! What can be wrong with an evaluation.

use std::path::PathBuf;

/// Says of which file or pipeline, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text cannot be made.
    #[error(transparent)]
    Text(#[from] vattention_tasks::Error),
    /// The model cannot take a text.
    #[error(transparent)]
    Model(#[from] vattention_llm::Error),
    /// A pipeline cannot run with the model.
    #[error("{pipeline}: {source}")]
    Pipeline {
        /// Its name.
        pipeline: String,
        /// Why not.
        source: Box<vattention_llm::Error>,
    },
    /// A pipeline has nothing that can be set so that it reads so much, or results cannot be kept or are missing.
    #[error(transparent)]
    Experiment(#[from] vattention_experiments::Error),
    /// The operating system refuses a file.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file, as it was given.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The threads for cases at once cannot be started.
    #[error("threads for cases at once: {0}")]
    Threads(rayon::ThreadPoolBuildError),
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn pipeline(name: String, source: vattention_llm::Error) -> Self {
        Self::Pipeline { pipeline: name, source: source.into() }
    }
}
