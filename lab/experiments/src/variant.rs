//! What is measured: pipelines, as they stand or made to read a share of the tokens.

use std::sync::Arc;
use vattention_core::PipelineConfig;

/// A pipeline, as it stands or made to read a share of the tokens.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// The share of the tokens that was asked for.
    pub asked: Option<f64>,
    /// What was set so that it reads about so much.
    pub set: Option<String>,
}

impl Variant {
    /// A pipeline as it stands.
    pub fn as_it_stands(pipeline: Arc<PipelineConfig>) -> Self {
        Self { pipeline, asked: None, set: None }
    }

    /// The pipeline's name, with what was asked for.
    pub fn name(&self) -> String {
        let name = &self.pipeline.name;
        self.asked.map_or_else(|| name.clone(), |share| named(name, share))
    }
}

/// Name of a pipeline whose settings were searched for a density.
pub fn named(name: &str, density: f64) -> String {
    format!("{name}, {} %", (density * 1e4).round() / 100.0)
}
