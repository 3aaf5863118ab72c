//! Attention received so far by each token that was not evicted.

use vattention_core::{Picks, plugin::Attended};

use crate::kept::{keep, weights_of};
use crate::learned::rounded;

/// Sums of rows of attention, of the tokens that are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) sums: Vec<f64>,
}

impl Received {
    /// Has so many tokens; new ones have received nothing.
    pub(crate) fn resize(&mut self, tokens: usize) {
        self.sums.resize(tokens, 0.0);
    }

    /// Adds one row of attention, over all those kept or the first of them, whose sum is 1.
    pub(crate) fn add(&mut self, weights: impl Iterator<Item = f32>) {
        self.sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += rounded(weight));
    }

    /// Adds what a step attended to, as shares of what those kept received of it.
    pub(crate) fn add_attended(&mut self, kept: &[u32], attended: &Attended<'_>) {
        let weights = weights_of(kept, attended);
        let sum: f64 = weights.iter().copied().map(f64::from).sum();
        if sum > 0.0 {
            self.add(weights.into_iter().map(|weight| (f64::from(weight) / sum) as f32));
        }
    }

    /// The scores of the first `old`, `[old]`.
    pub(crate) fn scores(&self, old: usize) -> Vec<f32> {
        self.sums[..old].iter().map(|&sum| sum as f32).collect()
    }

    /// Drops from the first places those that do not `stay`.
    pub(crate) fn keep(&mut self, stay: &Picks) {
        keep(&mut self.sums, stay.visible(), stay);
    }

    /// What the sums take.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.sums[..])
    }
}
