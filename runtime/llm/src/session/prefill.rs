//! The beginning of a sequence: a prompt.

use vattention_core::{Attention, TokenClass};

use super::Session;
use crate::prefill::{LayerPrompt, Prefilled};
use crate::{Error, Result};

impl Session<'_> {
    /// Reads a prompt, by dense attention unless the options say otherwise, as the first thing in a sequence, and returns the logits
    /// after its last token, `[vocab_size]`. Selectors are shown its last queries.
    ///
    /// Cost: as [`Model::read`](crate::Model::read), beside what the backend keeps.
    ///
    /// # Errors
    /// As [`Model::read`](crate::Model::read), and [`Error::Input`] if the sequence is not empty:
    /// then nothing has changed. If a layer fails, the sequence is lost.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.prefill_with(tokens, |_, _| ())
    }

    /// As [`prefill`](Self::prefill); `progress` is called with the layers done and of all.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn prefill_with(
        &mut self,
        tokens: &[u32],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<f32>> {
        self.check_can_begin()?;
        self.model.check_prompt(tokens)?;
        self.grow(tokens.len(), |session| {
            let classes = session.classes_of(tokens);
            let Self { model, layers, reading, prefill_density, .. } = session;
            let mut densities = 0.0;
            let logits = model.read(tokens, *reading, |layer, prompt| {
                enter(layer, layers[layer].as_mut(), &prompt, classes.as_deref())?;
                densities += prompt.density();
                progress(layer + 1, layers.len());
                Ok(())
            })?;
            *prefill_density = Some(densities / layers.len() as f64);
            Ok(logits)
        })
    }

    /// Goes on from a prompt of the same model that was read before, as if by
    /// [`prefill`](Self::prefill): several pipelines, one reading. Returns the logits after its
    /// last token.
    ///
    /// # Errors
    /// [`Error::Input`] if the sequence is not empty, or the prompt is of a model with other layers:
    /// then nothing has changed. If a layer fails, the sequence is lost.
    pub fn begin(&mut self, prompt: &Prefilled) -> Result<Vec<f32>> {
        self.check_can_begin()?;
        self.model.check_layers(prompt)?;
        self.grow(prompt.tokens.len(), |session| {
            let classes = session.classes_of(&prompt.tokens);
            for (layer, (attention, part)) in
                session.layers.iter_mut().zip(&prompt.layers).enumerate()
            {
                enter(layer, attention.as_mut(), part, classes.as_deref())?;
            }
            session.prefill_density = Some(prompt.density());
            Ok(prompt.logits.clone())
        })
    }

    fn check_can_begin(&self) -> Result<()> {
        self.check_not_lost()?;
        if self.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "the sequence has {} tokens already; expected none, or `step` for more",
            self.len
        );
        Err(Error::input("prefill", reason))
    }
}

/// Leaves a layer's part of a prompt with its attention.
fn enter(
    layer: usize,
    attention: &mut dyn Attention,
    prompt: &LayerPrompt,
    classes: Option<&[TokenClass]>,
) -> Result<()> {
    let failed = |source| Error::Attention { layer, source };
    let (keys, values) = (prompt.keys.view(), prompt.values.view());
    attention.append_rows(keys.into(), values.into(), classes).map_err(failed)?;
    if prompt.queries.dim().1 > 0 {
        attention.observe(prompt.queries.view()).map_err(failed)?;
    }
    Ok(())
}
