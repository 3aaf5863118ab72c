//! Gated feed-forward network.

use rayon::prelude::*;

use crate::Result;
use crate::config::{Config, GateActivation};
use crate::exponential::{clamped_swiglu, gelu_times, silu_times};
use crate::inputs::LinearInputs;
use crate::linear::{Linear, LinearScratch, PART};
use crate::weights::CheckpointTensors;

/// `down(a(gate(x)) · up(x))`
#[derive(Clone, Debug)]
pub(crate) struct Gated {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) activation: GateActivation,
}

impl Gated {
    /// Reads a network of a layer, of `inner` elements per token. `suffix` distinguishes the names
    /// of its tensors from those of other networks.
    pub(crate) fn open(
        weights: &mut CheckpointTensors,
        layer: usize,
        suffix: &str,
        inner: usize,
        config: &Config,
    ) -> Result<Self> {
        let outer = config.hidden_size;
        let biased = config.biases.feed_forward;
        let name = |part: &str| format!("blk.{layer}.{part}{suffix}");
        let (gate, up) = (name("ffn_gate"), name("ffn_up"));
        let parts = [(gate.as_str(), inner), (up.as_str(), inner)];
        let [gate, up] = Linear::open_parts(weights, &name("ffn_gate_up"), outer, parts, biased)?;
        let down = Linear::open(weights, &name("ffn_down"), [inner, outer], biased)?;
        Ok(Self { gate, up, down, activation: config.block.activation })
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
        gate.par_chunks_mut(PART)
            .zip(up.par_chunks(PART))
            .for_each(|(gate, up)| self.activation.apply(gate, up));
        self.down.add(&LinearInputs::new(&gate, x.rows()), y, scratch);
        (scratch.gate, scratch.up) = (gate, up);
    }
}

impl GateActivation {
    /// Replaces each gate by its activation times the element of `up`.
    fn apply(self, gate: &mut [f32], up: &[f32]) {
        match self {
            Self::Silu => silu_times(gate, up),
            Self::GeluTanh => gelu_times(gate, up),
            Self::ClampedSwiglu { alpha, limit } => clamped_swiglu(gate, up, alpha, limit),
        }
    }
}
