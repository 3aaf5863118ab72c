//! Sampling of a token from logits, with all steps in their order.

use super::SamplingParams;
use super::draw::{RandomNumbers, draw_at};
use super::filters::filter;
use super::history::TokenHistory;
use crate::{Error, Result, most_likely_token};

/// Bias that excludes a token.
const EXCLUDING_BIAS: f32 = -100.0;

/// Sampler of the tokens of one text.
#[derive(Debug)]
pub(super) struct TokenSampler {
    params: SamplingParams,
    history: TokenHistory,
    random: RandomNumbers,
}

impl TokenSampler {
    /// Starts after a prompt. The caller has checked the parameters.
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        Self {
            history: TokenHistory::new(params, prompt),
            random: RandomNumbers::new(params.seed),
            params: params.clone(),
        }
    }

    /// Chooses token number `position` of the text, and applies biases and penalties to the logits.
    ///
    /// # Errors
    /// [`Error::Input`] if no token has a finite logit.
    pub(super) fn choose(&mut self, logits: &mut [f32], position: usize) -> Result<u32> {
        let refuse = || Error::input("logits", "expected a token whose logit is finite");
        for &(token, bias) in &self.params.logit_bias {
            let bias = if bias <= EXCLUDING_BIAS { f32::NEG_INFINITY } else { bias };
            logits[token as usize] += bias;
        }
        self.history.penalise(logits);
        let likeliest = most_likely_token(logits)?;
        if !logits[likeliest as usize].is_finite() {
            return Err(refuse());
        }
        if self.params.temperature == 0.0 {
            return Ok(likeliest);
        }
        let candidates = filter(logits, &self.params);
        let random = self.random.get(position);
        draw_at(&candidates, self.params.temperature, random).ok_or_else(refuse)
    }

    /// Adds a token to the text.
    pub(super) fn push(&mut self, token: u32) {
        self.history.push(token);
    }
}
