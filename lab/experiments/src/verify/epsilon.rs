//! Pipelines with another promise.

use std::iter;
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
    let mut other = pipeline.clone();
    let layers = other.layers.iter_mut().map(|layer| &mut layer.pipeline);
    let of_layers = layers.map(|pipeline| &mut Arc::make_mut(pipeline).estimator);
    let mut estimators = iter::once(&mut other.estimator).chain(of_layers).flatten().peekable();
    estimators.peek()?;
    for estimator in estimators {
        set(estimator.tunable()?)?;
    }
    Some(Arc::new(other))
}
