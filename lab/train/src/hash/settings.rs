//! Settings of a training run.

use std::path::Path;

use serde::{Deserialize, Serialize};
use vattention_core::{Fraction, Size, step::Score};
use vattention_selectors::{Activation, Bits, HashAttention, IndexScope};

use crate::{Error, Result};

/// Maximum width of a hidden layer: many times a head's dimension, with weights that fit into
/// memory.
const WIDEST: usize = 2048;
/// Maximum number of steps, which is the largest exponent in Adam's bias correction.
const LONGEST: usize = i32::MAX as usize;

/// Settings of a training run. On one machine, equal settings and traces make equal weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingSettings {
    /// Bits of a code.
    pub bits: Bits,
    /// Widths of the hidden layers; `None` stands for two of `head_dim`.
    pub hidden: Option<Vec<usize>>,
    /// Optimizer steps per layer of the model.
    pub steps: usize,
    /// Queries per step.
    pub queries: usize,
    /// Consecutive tokens per step.
    pub tokens: usize,
    /// Learning rate of Adam in the first step. It falls linearly to 0 after the last step.
    pub learning_rate: f64,
    /// Number of positive keys of a query.
    pub top: usize,
    /// Weight of a positive key; other keys have weight 1.
    pub positive_weight: f64,
    /// Seed of the initial parameters and of the batches.
    pub seed: u64,
}

impl Default for TrainingSettings {
    fn default() -> Self {
        Self {
            bits: Bits::default(),
            hidden: None,
            steps: 400,
            queries: 64,
            tokens: 4096,
            learning_rate: 3e-3,
            top: 32,
            positive_weight: 20.0,
            seed: 0,
        }
    }
}

impl TrainingSettings {
    /// Refuses settings that are out of range.
    ///
    /// # Errors
    /// If a field is out of range; the error names it.
    pub fn check(&self) -> Result<()> {
        let widths = self.hidden.iter().flatten().map(|&width| ("hidden", width));
        let counts = [
            ("steps", self.steps),
            ("queries", self.queries),
            ("tokens", self.tokens),
            ("top", self.top),
        ];
        expect_counts(counts.into_iter().chain(widths.clone()))?;
        let most = widths.map(|(field, width)| (field, width, WIDEST));
        for (field, n, most) in most.chain([("steps", self.steps, LONGEST)]) {
            if n > most {
                return Err(Error::setting(field, format!("{n}; expected at most {most}")));
            }
        }
        expect_positive([
            ("learning_rate", self.learning_rate),
            ("positive_weight", self.positive_weight),
        ])
    }

    /// Returns a selector that reads the weights, with codes and a score for each query head.
    pub fn selector(&self, weights: &Path) -> HashAttention {
        HashAttention {
            size: sixteenth(),
            weights: Some(weights.into()),
            bits: Some(self.bits),
            codes: IndexScope::Head,
            activation: Activation::Silu,
            score: Score::Head,
        }
    }

    /// Returns the number of inputs of each layer of a network, and the number of outputs.
    pub(super) fn widths(&self, head_dim: usize) -> Vec<usize> {
        let mut widths = vec![head_dim];
        widths.extend(self.hidden.clone().unwrap_or_else(|| vec![head_dim; 2]));
        widths.push(usize::from(self.bits.get()));
        widths
    }
}

/// Refuses counts of zero.
pub(super) fn expect_counts(counts: impl IntoIterator<Item = (&'static str, usize)>) -> Result<()> {
    match counts.into_iter().find(|&(_, n)| n == 0) {
        Some((field, _)) => Err(Error::setting(field, "0; expected at least 1")),
        None => Ok(()),
    }
}

/// Refuses numbers that are not positive, or not finite in f32, the type of all training.
pub(super) fn expect_positive(
    numbers: impl IntoIterator<Item = (&'static str, f64)>,
) -> Result<()> {
    match numbers.into_iter().find(|&(_, x)| !((x as f32).is_finite() && x > 0.0)) {
        Some((field, x)) => {
            let reason = format!("{x:?}; expected above 0 and at most {:e}", f32::MAX);
            Err(Error::setting(field, reason))
        }
        None => Ok(()),
    }
}

/// Returns the size of the selector whose recall is measured, a sixteenth of the tokens.
pub(super) fn sixteenth() -> Size {
    Size::Share(Fraction::try_from(1.0 / 16.0).expect("a sixteenth lies between 0 and 1"))
}
