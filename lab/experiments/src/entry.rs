//! A pipeline to measure, with its origin.

use std::sync::Arc;

use vattention_core::PipelineConfig;

/// A pipeline to measure, with the file that it is from.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// File of the pipeline, as given.
    pub file: String,
    /// Settings that tune the pipeline to a density, such as `epsilon 0.083`; `None` if its
    /// settings are those of the file.
    pub set: Option<String>,
}
