//! Gated feed-forward network.

use rayon::prelude::*;

use crate::Result;
use crate::config::Config;
use crate::exponential::silu_times;
use crate::inputs::LinearInputs;
use crate::linear::{Linear, LinearScratch, PART};
use crate::weights::CheckpointTensors;

/// `down(silu(gate(x)) · up(x))`
#[derive(Clone, Debug)]
pub(crate) struct Gated {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Gated {
    pub(crate) fn open(
        weights: &mut CheckpointTensors,
        name: &str,
        config: &Config,
    ) -> Result<Self> {
        let (outer, inner) = (config.hidden_size, config.intermediate_size);
        let mut linear = |part: &str, sizes| {
            Linear::open(weights, &format!("{name}.{part}"), sizes, config.biases.feed_forward)
        };
        Ok(Self {
            gate: linear("gate_proj", [outer, inner])?,
            up: linear("up_proj", [outer, inner])?,
            down: linear("down_proj", [inner, outer])?,
        })
    }

    /// Adds the network's output for `x`, `[n, hidden_size]`, to `y` of the same shape.
    pub(crate) fn add(&self, x: &LinearInputs<'_>, y: &mut [f32], scratch: &mut LinearScratch) {
        let inner = x.rows() * self.gate.outputs();
        let (mut gate, mut up) =
            (std::mem::take(&mut scratch.gate), std::mem::take(&mut scratch.up));
        gate.resize(inner, 0.0);
        up.resize(inner, 0.0);
        let maps = [(&self.gate, gate.as_mut_slice()), (&self.up, up.as_mut_slice())];
        Linear::apply_all(x, maps, scratch);
        gate.par_chunks_mut(PART).zip(up.par_chunks(PART)).for_each(|(g, u)| silu_times(g, u));
        self.down.add(&LinearInputs::new(&gate, x.rows()), y, scratch);
        (scratch.gate, scratch.up) = (gate, up);
    }
}
