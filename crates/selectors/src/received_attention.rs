//! Attention received so far by each token that was not evicted.

use vattention_core::{Picks, plugin::AttentionWeights};

use crate::kept_tokens::{align_weights, retain_places};
use crate::prompt_attention::round_weight;

/// Sums of attention weights over rows, one per kept token.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedAttention {
    pub(crate) sums: Vec<f64>,
}

impl ReceivedAttention {
    /// Sets the number of tokens. New tokens have received nothing.
    pub(crate) fn resize(&mut self, tokens: usize) {
        self.sums.resize(tokens, 0.0);
    }

    /// Adds one row of attention weights, over all kept tokens or a prefix of them. The weights sum
    /// to 1 with the weight of the attention sink.
    pub(crate) fn add(&mut self, weights: impl Iterator<Item = f32>) {
        self.sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += round_weight(weight));
    }

    /// Adds the weights of one row of a step, normalised to sum to 1 over the kept tokens and the
    /// attention sink.
    pub(crate) fn add_attended(&mut self, kept: &[u32], attended: &AttentionWeights<'_>) {
        let weights = align_weights(kept, attended);
        let sum = f64::from(attended.sink) + weights.iter().copied().map(f64::from).sum::<f64>();
        if sum > 0.0 {
            self.add(weights.into_iter().map(|weight| (f64::from(weight) / sum) as f32));
        }
    }

    /// Returns the sums of the first `old` tokens as scores, `[old]`.
    pub(crate) fn scores(&self, old: usize) -> Vec<f32> {
        self.sums[..old].iter().map(|&sum| sum as f32).collect()
    }

    /// Drops those of the first `stay.visible()` places that `stay` does not contain.
    pub(crate) fn retain(&mut self, stay: &Picks) {
        retain_places(&mut self.sums, stay.visible(), stay);
    }

    /// Size of the sums in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.sums[..])
    }
}
