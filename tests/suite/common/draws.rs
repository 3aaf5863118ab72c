//! Pipelines of samples for a promise, each query head for itself.

use std::sync::Arc;

use vattention::estimators::{Mode, Ratio};
use vattention::selectors::{Sink, Window};
use vattention::{
    Fraction, PipelineConfig, Share, Size,
    plugin::{Estimator, SamplerConfig, SelectorConfig},
};
use vattention_testkit::promises::{PromiseHead, PromiseTrials};

pub(crate) const BASE: usize = 64;

/// The base of every sample.
pub(crate) const FIRST: Size = Size::Tokens(BASE);

/// Sinks and a window together.
pub(crate) const ENDS: usize = 16;

pub(crate) fn fraction(x: f64) -> Fraction {
    x.try_into().unwrap()
}

/// A promise of the output.
pub(crate) fn ratio(mode: Mode, epsilon: f64, delta: f64) -> Ratio {
    let mut ratio = Ratio::new(fraction(epsilon), fraction(delta));
    ratio.mode = mode;
    ratio
}

/// A pipeline of a sample alone.
pub(crate) fn only(
    sampler: Box<dyn SamplerConfig>,
    estimator: Box<dyn Estimator>,
) -> PipelineConfig {
    PipelineConfig {
        sampler: Some(sampler),
        estimator: Some(estimator),
        ..PipelineConfig::default()
    }
}

/// A few sinks, a window, and what follows, each query head for itself.
pub(crate) fn bench(head: PromiseHead, mut config: PipelineConfig) -> PromiseTrials {
    let size = Size::Tokens(ENDS / 2);
    let ends: [Box<dyn SelectorConfig>; 2] = [Box::new(Sink { size }), Box::new(Window { size })];
    config.selectors.splice(0..0, ends);
    config.share = Share::Head;
    PromiseTrials::new(head, &Arc::new(config))
}
