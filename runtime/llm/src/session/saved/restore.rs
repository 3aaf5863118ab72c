//! Continuation of saved sessions.

use std::borrow::Cow;

use ndarray::{Array3, Axis, s};
use vattention_core::engine::{AttentionState, ObservedPrompt};
use vattention_core::{Attention, Storage, TokenClass};

use super::header::{LOGITS, TensorLayout, first_sizes_tensor};
use super::numbers::{from_bytes, stored_dim};
use super::{SavedSession, SessionOrigin};
use crate::prefill::reads::causal_pairs;
use crate::prefill::{EarlierPrompt, LayerPrompt};
use crate::session::Session;
use crate::session::rotated::{RowRotations, append_rows, observe};
use crate::{Config, Error, Result};

/// One layer of a saved session.
struct SavedLayer {
    /// `[kv_heads, tokens, head_dim]`
    keys: Array3<f32>,
    /// `[kv_heads, tokens, value_dim]`
    values: Array3<f32>,
    state: AttentionState,
}

impl Session<'_> {
    /// Reads a prompt that begins with the tokens of a saved session, as if by
    /// [`prefill_with`](Self::prefill_with). Only the tokens after the last whole
    /// [block](crate::PrefillOptions::block) of the saved tokens are read; no token is read if the
    /// saved session has them all.
    ///
    /// # Errors
    /// The errors of [`restore`](Self::restore), [`SavedSession::check_tokens`] and
    /// [`prefill`](Self::prefill).
    pub fn prefill_after(
        &mut self,
        saved: &mut SavedSession,
        origin: &SessionOrigin,
        tokens: &[u32],
        progress: impl FnMut(usize, usize),
    ) -> Result<Vec<f32>> {
        saved.check_tokens(tokens)?;
        if saved.tokens().len() == tokens.len() {
            return self.restore(saved, origin);
        }
        self.check_saved(saved, origin)?;
        let (config, block) = (self.model.config(), self.prefill_options.block.max(1));
        let mut earlier = SavedPrompt { saved, config, block };
        self.prefill_from(Some(&mut earlier), tokens, progress)
    }

    /// Restores a saved session in this empty session, and returns the logits after its last token.
    /// Further steps give the same results as in the saved session. This session keeps its own
    /// sequence number.
    ///
    /// Cost: that of appending the keys and values to the backend; one layer of them is in memory
    /// twice.
    ///
    /// # Errors
    /// [`Error::Input`] if this session is not empty. [`Error::SavedSession`] with the reason if
    /// the saved session has another model, another number type of keys and values, rows that only
    /// one of both sessions [rotates](crate::rotates_rows), or another prefill, or if it has made
    /// steps with another pipeline; the session is then unchanged.
    /// Numbers in f32 are rounded for a session in 16 or 8 bits, as if it had read the prompt
    /// itself, unless the saved session has made steps. If a layer fails, the session is lost.
    pub fn restore(
        &mut self,
        saved: &mut SavedSession,
        origin: &SessionOrigin,
    ) -> Result<Vec<f32>> {
        self.check_can_begin()?;
        self.check_saved(saved, origin)?;
        self.model.check_prompt(saved.tokens())?;
        let vocabulary = self.model.config().vocab_size;
        let logits = TensorLayout::new(LOGITS, safetensors::Dtype::F32, &[vocabulary]);
        let logits = from_bytes(&saved.read(&logits)?, vocabulary, Storage::F32);
        self.grow(saved.tokens().len(), |session| {
            let classes = session.classify(saved.tokens());
            // Rows that are not yet rounded to the session's storage are not yet rotated.
            let rotations = session.rotations.as_deref().filter(|_| !saved.header.rotated);
            for (layer, attention) in session.layers.iter_mut().enumerate() {
                let part = saved.read_layer(layer, session.model.config())?;
                part.append_to(attention.as_mut(), rotations, classes.as_deref())
                    .map_err(|source| Error::Attention { layer, source })?;
            }
            session.prefill_density = saved.header.prefill_density;
            Ok(logits)
        })
    }

    /// Refuses a saved session from which this session would continue with other numbers.
    fn check_saved(&self, saved: &SavedSession, origin: &SessionOrigin) -> Result<()> {
        let rotates = self.rotations.is_some();
        saved.check_origin(origin, self.storage, rotates, &self.prefill_options)
    }
}

/// Prompt of a saved session with a dense prefill, as the prefix of a longer prompt.
struct SavedPrompt<'s> {
    saved: &'s mut SavedSession,
    config: &'s Config,
    /// Number of tokens of a prefill block.
    block: usize,
}

impl EarlierPrompt for SavedPrompt<'_> {
    fn tokens(&self) -> &[u32] {
        self.saved.tokens()
    }

    fn layer(&mut self, number: usize) -> Result<Cow<'_, LayerPrompt>> {
        let SavedLayer { keys, values, .. } = self.saved.read_layer(number, self.config)?;
        let (heads, tokens, head_dim) = keys.dim();
        let window = self.config.window(number);
        let pairs = |first: usize| {
            heads as u64 * causal_pairs(first, self.block.min(tokens - first), window)
        };
        let read_pairs = (0..tokens).step_by(self.block).map(pairs).collect();
        // The selectors observe the queries of the longer prompt instead.
        let queries = Array3::zeros((self.config.shape.query_heads, 0, head_dim));
        Ok(Cow::Owned(LayerPrompt { keys, values, queries, read_pairs, window }))
    }
}

impl SavedSession {
    /// Reads a layer.
    fn read_layer(&mut self, layer: usize, config: &Config) -> Result<SavedLayer> {
        let storage = self.storage;
        let [keys, values] = self.header.row_tensors(layer, config, storage);
        let first = self.header.first_row(layer, config);
        let keys = prepend_zeros(first, self.read_numbers(&keys, storage)?);
        let values = prepend_zeros(first, self.read_numbers(&values, storage)?);
        let mut prompts = Vec::new();
        for i in 0..self.header.prompts_of(layer, config) {
            let layout = self.header.query_tensor(layer, i, config);
            let queries = self.read_numbers(&layout, Storage::F32)?;
            prompts.push(ObservedPrompt { tokens: self.header.prompts[i].tokens, queries });
        }
        let sizes = self.read(&first_sizes_tensor(layer, config))?;
        let first_sizes = sizes.as_chunks().0.iter().map(|&x| u64::from_le_bytes(x)).collect();
        let state = AttentionState { step: self.header.step, prompts, first_sizes };
        Ok(SavedLayer { keys, values, state })
    }

    fn read_numbers(&mut self, layout: &TensorLayout, storage: Storage) -> Result<Array3<f32>> {
        let [heads, rows, stored] = layout.shape[..] else { unreachable!("tensors of rows") };
        let dim = stored - stored_dim(0, storage);
        let numbers = from_bytes(&self.read(layout)?, dim, storage);
        Array3::from_shape_vec((heads, rows, dim), numbers)
            .map_err(|error| self.refuse(&format!("`{}`: {error}", layout.name)))
    }
}

/// Adds zeros in place of the first rows, which no later query reads.
fn prepend_zeros(count: usize, rows: Array3<f32>) -> Array3<f32> {
    if count == 0 {
        return rows;
    }
    let (heads, saved, dim) = rows.dim();
    let mut all = Array3::zeros((heads, count + saved, dim));
    all.slice_mut(s![.., count.., ..]).assign(&rows);
    all
}

impl SavedLayer {
    /// Appends the rows to an empty attention, which then observes the prompts and resumes the
    /// state. Rows and queries are rotated first, if there are rotations.
    fn append_to(
        &self,
        attention: &mut dyn Attention,
        rotations: Option<&RowRotations>,
        classes: Option<&[TokenClass]>,
    ) -> vattention_core::Result<()> {
        let total = self.keys.len_of(Axis(1));
        for prompt in &self.state.prompts {
            self.append_up_to(prompt.tokens.min(total), attention, rotations, classes)?;
            observe(attention, rotations, &prompt.queries)?;
        }
        self.append_up_to(total, attention, rotations, classes)?;
        // Before the first step, there is no state to resume, and the session keeps its own step
        // number.
        if self.state.step > 0 { attention.resume(&self.state) } else { Ok(()) }
    }

    fn append_up_to(
        &self,
        end: usize,
        attention: &mut dyn Attention,
        rotations: Option<&RowRotations>,
        classes: Option<&[TokenClass]>,
    ) -> vattention_core::Result<()> {
        let first = attention.len().min(end);
        let part = s![.., first..end, ..];
        let rows = [self.keys.slice(part), self.values.slice(part)];
        append_rows(attention, rotations, rows, classes.map(|all| &all[first..end]))
    }
}
