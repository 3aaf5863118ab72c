//! Feed-forward network of a layer: gated, or of experts.

use crate::Result;
use crate::config::Config;
use crate::experts::ExpertNetwork;
use crate::gated::Gated;
use crate::inputs::LinearInputs;
use crate::linear::LinearScratch;
use crate::weights::CheckpointTensors;

/// Feed-forward network of a layer.
#[derive(Clone, Debug)]
pub(crate) enum FeedForward {
    Gated(Gated),
    Experts(ExpertNetwork),
}

impl FeedForward {
    /// Reads the network of a layer from a checkpoint.
    pub(crate) fn open(
        weights: &mut CheckpointTensors,
        layer: usize,
        config: &Config,
    ) -> Result<Self> {
        if let Some(experts) = config.experts_of(layer) {
            return ExpertNetwork::open(weights, layer, config, experts).map(Self::Experts);
        }
        Gated::open(weights, layer, "", config.intermediate_size, config).map(Self::Gated)
    }

    /// Adds the network's output for `x`, `[n, hidden_size]`, to `y` of the same shape.
    pub(crate) fn add(&self, x: &LinearInputs<'_>, y: &mut [f32], scratch: &mut LinearScratch) {
        match self {
            Self::Gated(gated) => gated.add(x, y, scratch),
            Self::Experts(experts) => experts.add(x, y, scratch),
        }
    }
}
