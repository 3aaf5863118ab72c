//! Sequences that begin with stored keys and values.

use ndarray::Array3;

use super::Session;
use super::rotated::append_rows;
use crate::{Error, Result};

impl Session<'_> {
    /// Begins an empty sequence with `tokens` tokens whose keys and values are already computed,
    /// such as a stored prompt. `keys_values` returns the keys of a layer after rotation,
    /// `[kv_heads, tokens, head_dim]`, and its values, `[kv_heads, tokens, value_dim]`. Selectors
    /// observe neither queries nor classes of these tokens.
    ///
    /// Cost: that of appending to the backend; one layer's keys and values are in memory twice.
    ///
    /// # Errors
    /// [`Error::Input`] if the sequence is not empty, if `tokens` is 0 or exceeds the model's
    /// context, or if a layer has another number of tokens; [`Error::Attention`] for a wrong shape,
    /// or numbers that cannot be stored.
    pub fn with_context(
        mut self,
        tokens: usize,
        mut keys_values: impl FnMut(usize) -> (Array3<f32>, Array3<f32>),
    ) -> Result<Self> {
        self.check_not_lost()?;
        if !self.is_empty() || tokens == 0 {
            let reason = format!(
                "{tokens} tokens for a sequence that has {}; expected at least 1, and an empty \
                 sequence",
                self.len
            );
            return Err(Error::input("context", reason));
        }
        self.model.check_length(tokens)?;
        for (layer, attention) in self.layers.iter_mut().enumerate() {
            let (keys, values) = keys_values(layer);
            if keys.dim().1 != tokens {
                let reason =
                    format!("layer {layer} has {} tokens; expected {tokens}", keys.dim().1);
                return Err(Error::input("context", reason));
            }
            let rows = [keys.view(), values.view()];
            let appended = append_rows(attention.as_mut(), self.rotations.as_deref(), rows, None);
            appended.map_err(|source| Error::Attention { layer, source })?;
        }
        self.len = tokens;
        Ok(self)
    }
}
