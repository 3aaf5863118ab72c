//! Greedy decoding.

use std::ops::ControlFlow;

use crate::{Error, Result, Session};

/// A prompt, cut where dense attention ends.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Read by dense attention; at least one token.
    pub dense: &'a [u32],
    /// Read by the pipeline, as by [`Session::steps`]: a question about a context, say.
    pub sparse: &'a [u32],
}

impl<'a> Prompt<'a> {
    /// All of it is read by dense attention.
    pub fn whole(tokens: &'a [u32]) -> Self {
        Self { dense: tokens, sparse: &[] }
    }

    /// Its tokens.
    pub fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The tokens after the prompt, without the one that ended them.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub stop: Stop,
}

/// Why a generation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model chose this token, which ends a text.
    End(u32),
    /// There are as many as were asked for.
    Length,
    /// The callback said so.
    Asked,
}

impl Session<'_> {
    /// Reads a prompt, and returns the logits after its last token, `[vocab_size]`.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill) and [`step`](Self::step); input that is wrong is refused
    /// before anything is read.
    pub fn read_prompt(&mut self, prompt: Prompt<'_>) -> Result<Vec<f32>> {
        self.model().check(prompt.sparse, prompt.dense.len())?;
        let logits = self.prefill(prompt.dense)?;
        self.steps(logits, prompt.sparse)
    }

    /// Reads a prompt into an empty sequence, and goes on with the likeliest token, until that is
    /// one that ends a text, or there are `most`, or `each` breaks off. `each` is shown every new
    /// token, with the sequence that chose it: its reports are of the step before the token, so
    /// there are none at the first token after a prompt that is all dense.
    ///
    /// # Errors
    /// As [`read_prompt`](Self::read_prompt); and [`Error::Input`], before anything is read, if
    /// the model cannot place `most` tokens after the prompt.
    pub fn generate(
        &mut self,
        prompt: Prompt<'_>,
        most: usize,
        each: impl FnMut(u32, &Self) -> ControlFlow<()>,
    ) -> Result<Generation> {
        self.model().check_length(prompt.len().saturating_add(most))?;
        let logits = self.read_prompt(prompt)?;
        self.go_on(logits, most, each)
    }

    /// Goes on from the logits after the last token, as [`generate`](Self::generate) does.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn go_on(
        &mut self,
        mut logits: Vec<f32>,
        most: usize,
        mut each: impl FnMut(u32, &Self) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let mut tokens = Vec::new();
        while tokens.len() < most {
            let token = best(&logits)?;
            if self.ends && self.model().config().ends.contains(&token) {
                return Ok(Generation { tokens, stop: Stop::End(token) });
            }
            tokens.push(token);
            if each(token, self).is_break() {
                return Ok(Generation { tokens, stop: Stop::Asked });
            }
            if tokens.len() < most {
                logits = self.step(token)?;
            }
        }
        Ok(Generation { tokens, stop: Stop::Length })
    }
}

/// The likeliest token, the lower one among equals.
///
/// # Errors
/// [`Error::Input`] if there are no logits.
pub fn best(logits: &[f32]) -> Result<u32> {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    let best = (0..logits.len()).reduce(better);
    best.map(|token| token as u32).ok_or_else(|| Error::input("logits", "there are none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_first_of_the_largest() {
        assert_eq!(best(&[1.0, 3.0, 3.0, 2.0]).unwrap(), 1);
        assert_eq!(best(&[-1.0]).unwrap(), 0);
        assert!(best(&[]).is_err());
    }
}
