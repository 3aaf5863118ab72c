//! Greedy decoding.

use std::ops::ControlFlow;

use crate::{Error, Result, Session};

/// Prompt in two parts: the first is read by dense attention, the second by the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Tokens that dense attention reads; at least one.
    pub dense: &'a [u32],
    /// Tokens that attend by the pipeline, as in [`Session::steps`], such as a question about a
    /// context.
    pub sparse: &'a [u32],
}

impl<'a> Prompt<'a> {
    /// Returns a prompt that is read by dense attention as a whole.
    pub fn whole(tokens: &'a [u32]) -> Self {
        Self { dense: tokens, sparse: &[] }
    }

    /// Number of tokens of both parts.
    pub fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    /// Returns true if the prompt has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Result of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Tokens after the prompt, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// Reason why the generation ended.
    pub stop: Stop,
}

/// Reason why a generation ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model chose this token, which ends a text.
    End(u32),
    /// The model chose this token, which is one of the caller's stop tokens.
    StopToken(u32),
    /// The generated text contained this stop string.
    StopString(String),
    /// The requested number of tokens was generated.
    Length,
    /// The caller ended the generation.
    Interrupted,
}

impl Session<'_> {
    /// Reads a prompt, and returns the logits after its last token, `[vocab_size]`.
    ///
    /// # Errors
    /// The errors of [`prefill`](Self::prefill) and [`step`](Self::step); wrong input is refused
    /// before anything is read.
    pub fn read_prompt(&mut self, prompt: Prompt<'_>) -> Result<Vec<f32>> {
        self.model().check(prompt.sparse, prompt.dense.len())?;
        let logits = self.prefill(prompt.dense)?;
        self.steps(logits, prompt.sparse)
    }

    /// Reads a prompt into an empty sequence, and generates the most likely tokens: until a token
    /// ends the text, `limit` tokens exist, or `on_token` breaks. `on_token` receives every new
    /// token and the sequence that chose it. The sequence's reports describe the step before the
    /// token, so they are empty at the first token after a prompt without a sparse part.
    ///
    /// # Errors
    /// The errors of [`read_prompt`](Self::read_prompt); and [`Error::Input`], before anything is
    /// read, if `limit` tokens after the prompt exceed the model's context.
    pub fn generate(
        &mut self,
        prompt: Prompt<'_>,
        limit: usize,
        on_token: impl FnMut(u32, &Self) -> ControlFlow<()>,
    ) -> Result<Generation> {
        self.model().check_length(prompt.len().saturating_add(limit))?;
        let logits = self.read_prompt(prompt)?;
        self.continue_generation(logits, limit, on_token)
    }

    /// Continues from the logits after the last token, like [`generate`](Self::generate).
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn continue_generation(
        &mut self,
        mut logits: Vec<f32>,
        limit: usize,
        mut on_token: impl FnMut(u32, &Self) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let mut tokens = Vec::new();
        while tokens.len() < limit {
            let token = most_likely_token(&logits)?;
            if self.ends && self.model().config().ends.contains(&token) {
                return Ok(Generation { tokens, stop: Stop::End(token) });
            }
            tokens.push(token);
            if on_token(token, self).is_break() {
                return Ok(Generation { tokens, stop: Stop::Interrupted });
            }
            if tokens.len() < limit {
                logits = self.step(token)?;
            }
        }
        Ok(Generation { tokens, stop: Stop::Length })
    }
}

/// Returns the most likely token; of several with the same logit, the lowest.
///
/// # Errors
/// [`Error::Input`] if there are no logits.
pub fn most_likely_token(logits: &[f32]) -> Result<u32> {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    let best = (0..logits.len()).reduce(better);
    best.map(|token| token as u32).ok_or_else(|| Error::input("logits", "there are none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_token_is_the_first_of_the_largest_logits() {
        assert_eq!(most_likely_token(&[1.0, 3.0, 3.0, 2.0]).unwrap(), 1);
        assert_eq!(most_likely_token(&[-1.0]).unwrap(), 0);
        assert!(most_likely_token(&[]).is_err());
    }
}
