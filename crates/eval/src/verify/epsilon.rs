//! A pipeline made to promise something else.

use std::sync::Arc;

use vattention_core::{Demand, Fraction, PipelineConfig};

/// The pipeline with another epsilon in the field of that name of its estimator, at every layer that is
/// not dense; `None` if it has none.
pub fn at_epsilon(pipeline: &PipelineConfig, epsilon: Fraction) -> Option<Arc<PipelineConfig>> {
    with_estimator(pipeline, "epsilon", epsilon, |demand| demand.epsilon)
}

/// The pipeline with another delta, likewise.
pub(crate) fn at_delta(pipeline: &PipelineConfig, delta: Fraction) -> Option<Arc<PipelineConfig>> {
    with_estimator(pipeline, "delta", delta, |demand| Some(demand.delta))
}

/// The pipeline with a field of its estimators changed, if that is what they then demand.
fn with_estimator(
    pipeline: &PipelineConfig,
    field: &str,
    value: Fraction,
    demanded: impl Fn(&Demand) -> Option<Fraction>,
) -> Option<Arc<PipelineConfig>> {
    let mut tree = serde_json::to_value(pipeline).ok()?;
    for (i, _) in pipeline.parts().enumerate().filter(|(_, part)| !part.reads_everything()) {
        let table = if i == 0 { &mut tree } else { tree.get_mut("layers")?.get_mut(i - 1)? };
        *table.get_mut("estimator")?.get_mut(field)? = value.get().into();
    }
    let other: PipelineConfig = serde_json::from_value(tree).ok()?;
    let demands = || other.parts().filter_map(PipelineConfig::demand);
    let changed = demands().all(|demand| demanded(&demand) == Some(value));
    (demands().next().is_some() && changed).then(|| Arc::new(other))
}
