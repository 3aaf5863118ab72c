//! Beginning of a sequence: its prompt.

use rayon::prelude::*;
use vattention_core::{Attention, TokenClass};

use super::Session;
use super::rotated::{RowRotations, append_rows, observe};
use crate::prefill::{EarlierPrompt, LayerPrompt, Prefilled, mean};
use crate::{Error, Result};

impl Session<'_> {
    /// Reads a prompt into an empty sequence, and returns the logits after its last token,
    /// `[vocab_size]`. Attention is dense unless the [options](Self::with_prefill_options) name
    /// another strategy. Selectors observe the prompt's last queries.
    ///
    /// Cost: that of [`Model::read`](crate::Model::read), and the memory of the backend.
    ///
    /// # Errors
    /// The errors of [`Model::read`](crate::Model::read), and [`Error::Input`] if the sequence is
    /// not empty; the sequence is then unchanged. If a layer fails, the sequence is lost.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.prefill_with(tokens, |_, _| ())
    }

    /// Reads a prompt like [`prefill`](Self::prefill), and calls `progress` after each layer with
    /// the number of finished layers and of all layers.
    ///
    /// # Errors
    /// The errors of [`prefill`](Self::prefill).
    pub fn prefill_with(
        &mut self,
        tokens: &[u32],
        progress: impl FnMut(usize, usize),
    ) -> Result<Vec<f32>> {
        self.prefill_from(None, tokens, progress)
    }

    /// Reads a prompt like [`prefill_with`](Self::prefill_with), but copies the blocks that it has
    /// in common with an earlier prompt.
    pub(super) fn prefill_from(
        &mut self,
        earlier: Option<&mut dyn EarlierPrompt>,
        tokens: &[u32],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<f32>> {
        self.check_can_begin()?;
        self.model.check_prompt(tokens)?;
        self.grow(tokens.len(), |session| {
            let classes = session.classify(tokens);
            let Self { model, layers, rotations, prefill_options, prefill_density, .. } = session;
            let rotations = rotations.as_deref();
            let mut densities = Vec::new();
            let logits = model.read_after(earlier, tokens, *prefill_options, |layer, prompt| {
                let attention = layers[layer].as_mut();
                append_prompt(layer, attention, rotations, &prompt, classes.as_deref())?;
                if prompt.window.is_none() {
                    densities.push(prompt.density());
                }
                progress(layer + 1, layers.len());
                Ok(())
            })?;
            *prefill_density = Some(mean(densities.into_iter()).unwrap_or(1.0));
            Ok(logits)
        })
    }

    /// Starts from a prompt that the same model has read before, as if by
    /// [`prefill`](Self::prefill), so that several pipelines can share one prefill. Returns the
    /// logits after the prompt's last token.
    ///
    /// # Errors
    /// [`Error::Input`] if the sequence is not empty, or the prompt was read by a model with other
    /// layers; the sequence is then unchanged. If a layer fails, the sequence is lost.
    pub fn begin(&mut self, prompt: &Prefilled) -> Result<Vec<f32>> {
        self.check_can_begin()?;
        self.model.check_layers(prompt)?;
        self.grow(prompt.tokens.len(), |session| {
            let classes = session.classify(&prompt.tokens);
            let rotations = session.rotations.as_deref();
            let layers = session.layers.par_iter_mut().zip(&prompt.layers).enumerate();
            layers.try_for_each(|(layer, (attention, part))| {
                append_prompt(layer, attention.as_mut(), rotations, part, classes.as_deref())
            })?;
            session.prefill_density = Some(prompt.density());
            Ok(prompt.logits.clone())
        })
    }

    pub(super) fn check_can_begin(&self) -> Result<()> {
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

/// Appends a layer's part of a prompt to its attention. Full layers observe the last queries;
/// sliding layers need none, and then keep all rows until their first step, so that a prompt can be
/// saved.
fn append_prompt(
    layer: usize,
    attention: &mut dyn Attention,
    rotations: Option<&RowRotations>,
    prompt: &LayerPrompt,
    classes: Option<&[TokenClass]>,
) -> Result<()> {
    let failed = |source| Error::Attention { layer, source };
    let LayerPrompt { keys, values, queries, window, .. } = prompt;
    append_rows(attention, rotations, [keys.view(), values.view()], classes).map_err(failed)?;
    if queries.dim().1 > 0 && window.is_none() {
        observe(attention, rotations, queries).map_err(failed)?;
    }
    Ok(())
}
