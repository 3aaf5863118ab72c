//! Pipelines with another promise.

use std::sync::Arc;

use vattention_core::{Fraction, PipelineConfig, plugin::TunableGoal};

/// Returns the pipeline with another epsilon at every layer that has an estimator; `None` if no
/// layer has an estimator, or an estimator has no epsilon.
pub fn with_epsilon(pipeline: &PipelineConfig, epsilon: Fraction) -> Option<Arc<PipelineConfig>> {
    with_goal(pipeline, |goal| goal.epsilon.map(|old| *old = epsilon))
}

/// Returns the pipeline with another delta at every layer that has an estimator; `None` if no layer
/// has an estimator, or an estimator is not [tunable](vattention_core::Estimator::tunable).
pub fn with_delta(pipeline: &PipelineConfig, delta: Fraction) -> Option<Arc<PipelineConfig>> {
    with_goal(pipeline, |goal| {
        *goal.delta = delta;
        Some(())
    })
}

/// Returns the pipeline after calling `set` on the goal of each estimator, if `set` succeeds for
/// all.
fn with_goal(
    pipeline: &PipelineConfig,
    set: impl Fn(TunableGoal<'_>) -> Option<()>,
) -> Option<Arc<PipelineConfig>> {
    let (mut other, mut results) = (pipeline.clone(), Vec::new());
    other.change_parts(|part| {
        let estimator = part.estimator.as_mut();
        results.extend(estimator.map(|estimator| estimator.tunable().and_then(&set)));
    });
    let succeeded = !results.is_empty() && results.iter().all(Option::is_some);
    succeeded.then(|| Arc::new(other))
}
