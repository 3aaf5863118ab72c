//! Tokens that have occurred, and the penalties on their logits.

use std::collections::{BTreeMap, BTreeSet};

use super::SamplingParams;

/// Tokens of the prompt and the generated text, and the penalties on their repetition.
#[derive(Debug)]
pub(super) struct TokenHistory {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Tokens of the prompt and the generated text.
    occurred: BTreeSet<u32>,
    /// Number of occurrences of each token in the generated text.
    counts: BTreeMap<u32, u32>,
}

impl TokenHistory {
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        Self {
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            occurred: prompt.iter().copied().collect(),
            counts: BTreeMap::new(),
        }
    }

    /// Adds a token of the text.
    pub(super) fn push(&mut self, token: u32) {
        self.occurred.insert(token);
        *self.counts.entry(token).or_default() += 1;
    }

    /// Penalises the logits of tokens that have occurred.
    pub(super) fn penalise(&self, logits: &mut [f32]) {
        if self.repetition != 1.0 {
            for &token in &self.occurred {
                let Some(logit) = logits.get_mut(token as usize) else { continue };
                *logit =
                    if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            }
        }
        if self.presence == 0.0 && self.frequency == 0.0 {
            return;
        }
        for (&token, &count) in &self.counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit -= count as f32 * self.frequency + self.presence;
        }
    }
}
