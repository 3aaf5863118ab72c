//! Pipelines with their own settings, or tuned to a density.

use std::sync::Arc;
use vattention_core::PipelineConfig;

/// A pipeline with its own settings, or tuned to a density.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// Density that the pipeline was tuned to; `None` if it has its own settings.
    pub asked: Option<f64>,
    /// Settings that tune the pipeline to that density.
    pub set: Option<String>,
}

impl Variant {
    /// Wraps a pipeline that keeps its own settings.
    pub fn untuned(pipeline: Arc<PipelineConfig>) -> Self {
        Self { pipeline, asked: None, set: None }
    }

    /// Name of the pipeline, with the density that it was tuned to.
    pub fn name(&self) -> String {
        let name = &self.pipeline.name;
        self.asked.map_or_else(|| name.clone(), |share| named(name, share))
    }
}

/// Name of a pipeline whose settings were searched for a density.
pub fn named(name: &str, density: f64) -> String {
    format!("{name}, {} %", (density * 1e4).round() / 100.0)
}
