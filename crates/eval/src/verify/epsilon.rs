//! A pipeline made to promise another epsilon.

use std::sync::Arc;

use serde_json::Value;
use vattention_core::{Fraction, PipelineConfig};

/// The pipeline with another epsilon in the field of that name, of its estimator or of the selector
/// that promises in its place; `None` if neither has one.
pub fn at_epsilon(pipeline: &PipelineConfig, epsilon: Fraction) -> Option<Arc<PipelineConfig>> {
    let mut tree = serde_json::to_value(pipeline).ok()?;
    let promising = if pipeline.estimator.is_some() {
        tree.get_mut("estimator")?
    } else {
        let place = pipeline.selectors.iter().position(|one| one.promise().is_some())?;
        tree.get_mut("selectors")?.get_mut(place)?
    };
    *promising.get_mut("epsilon")? = Value::from(epsilon.get());
    let other: PipelineConfig = serde_json::from_value(tree).ok()?;
    (other.promise()?.epsilon == epsilon).then(|| Arc::new(other))
}
