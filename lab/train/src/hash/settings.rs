//! What training follows from, beside the traces.

use std::path::Path;

use serde::{Deserialize, Serialize};
use vattention_core::{Fraction, Size, step::Score};
use vattention_selectors::{Activation, Bits, HashAttention, IndexOf};

use crate::{Error, Result};

/// Many times a head's width; the square of many more would not fit into memory.
const WIDEST: usize = 2048;
/// As many steps as Adam can count.
const LONGEST: usize = i32::MAX as usize;

/// Equal settings and traces make equal weights, on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingSettings {
    /// Signs in a code.
    pub bits: Bits,
    /// Widths between the layers; `None`: two of `head_dim`.
    pub hidden: Option<Vec<usize>>,
    /// Optimiser steps for each layer of the model.
    pub steps: usize,
    /// Queries in a step.
    pub queries: usize,
    /// Tokens in a step, in a row.
    pub tokens: usize,
    /// Adam's.
    pub learning_rate: f64,
    /// Keys of a query that are positive.
    pub top: usize,
    /// The weight of a positive; that of others is 1.
    pub positive_weight: f64,
    /// What the first parameters and the order of the batches follow from.
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
    /// Refuses what cannot be trained with.
    ///
    /// # Errors
    /// Names the field.
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

    /// What reads the weights: each query head by itself.
    pub fn selector(&self, weights: &Path) -> HashAttention {
        HashAttention {
            size: sixteenth(),
            weights: Some(weights.into()),
            bits: Some(self.bits),
            codes: IndexOf::Head,
            activation: Activation::Silu,
            score: Score::Head,
        }
    }

    /// Numbers that go in and out of each layer of a network.
    pub(super) fn widths(&self, head_dim: usize) -> Vec<usize> {
        let mut widths = vec![head_dim];
        widths.extend(self.hidden.clone().unwrap_or_else(|| vec![head_dim; 2]));
        widths.push(usize::from(self.bits.get()));
        widths
    }
}

/// Refuses settings that count nothing.
pub(super) fn expect_counts(counts: impl IntoIterator<Item = (&'static str, usize)>) -> Result<()> {
    match counts.into_iter().find(|&(_, n)| n == 0) {
        Some((field, _)) => Err(Error::setting(field, "0; expected at least 1")),
        None => Ok(()),
    }
}

/// Refuses settings that are not positive, or infinite in f32, which training is in.
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

/// The share of the tokens that may be picked.
pub(super) fn sixteenth() -> Size {
    Size::Share(Fraction::try_from(1.0 / 16.0).expect("a sixteenth lies between 0 and 1"))
}
