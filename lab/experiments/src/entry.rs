//! A pipeline to measure, with its origin.

use std::sync::Arc;

use vattention_core::PipelineConfig;

/// A pipeline to measure.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// Its file, as given.
    pub file: String,
    /// What was set so that it reads a share of the tokens, if that was asked for.
    pub set: Option<String>,
}
