//! A pipeline made to promise another epsilon.

use std::sync::Arc;

use serde_json::Value;
use vattention_core::{Fraction, PipelineConfig};

/// The pipeline with another epsilon in the field of that name, of its estimator or of the selector
/// that promises in its place, at every layer that is not dense; `None` if neither has one.
pub fn at_epsilon(pipeline: &PipelineConfig, epsilon: Fraction) -> Option<Arc<PipelineConfig>> {
    let mut tree = serde_json::to_value(pipeline).ok()?;
    for (i, part) in pipeline.parts().enumerate().filter(|(_, part)| !part.reads_everything()) {
        let table = if i == 0 { &mut tree } else { tree.get_mut("layers")?.get_mut(i - 1)? };
        *promising(part, table)?.get_mut("epsilon")? = epsilon.get().into();
    }
    let other: PipelineConfig = serde_json::from_value(tree).ok()?;
    let promises = |part: &PipelineConfig| part.promise().is_none_or(|it| it.epsilon == epsilon);
    (other.promise().is_some() && other.parts().all(promises)).then(|| Arc::new(other))
}

/// The table of what promises, in that of a part of a pipeline.
fn promising<'t>(part: &PipelineConfig, table: &'t mut Value) -> Option<&'t mut Value> {
    if part.estimator.is_some() {
        return table.get_mut("estimator");
    }
    let place = part.selectors.iter().position(|one| one.promise().is_some())?;
    table.get_mut("selectors")?.get_mut(place)
}
