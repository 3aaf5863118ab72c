//! Reading a prompt, layer by layer, with everything visible that is not later.

use candle_core::{Result as Numbers, Tensor};
use ndarray::Array3;

use crate::layer::Layer;
use crate::rope::Angles;
use crate::{Error, Model, Result, dense};

/// How a prompt is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Tokens that go through a layer at once, at least 1. The results depend on it by rounding
    /// alone; memory grows with it.
    pub block: usize,
    /// The last queries that are kept: for selectors, more than any of them asks for by default.
    pub observed: usize,
}

impl Default for Reading {
    fn default() -> Self {
        Self { block: 512, observed: 64 }
    }
}

/// What one layer's attention knows of a prompt.
#[derive(Clone, Debug)]
pub struct LayerPrompt {
    /// After rotation, `[kv_heads, tokens, head_dim]`.
    pub keys: Array3<f32>,
    /// `[kv_heads, tokens, value_dim]`
    pub values: Array3<f32>,
    /// Those of the last tokens, after rotation, `[query_heads, observed, head_dim]`.
    pub queries: Array3<f32>,
}

/// A prompt that was read once, for several sequences to go on from.
#[derive(Clone, Debug)]
pub struct Prefilled {
    /// One for each layer.
    pub layers: Vec<LayerPrompt>,
    /// After the last token, `[vocab_size]`.
    pub logits: Vec<f32>,
}

impl Prefilled {
    /// Tokens of the prompt.
    pub fn tokens(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.keys.dim().1)
    }
}

impl Model {
    /// Reads a prompt by dense attention, and keeps all of it.
    ///
    /// Cost: as [`read`](Self::read); 4 bytes for each number of keys and values.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn prefill(&self, tokens: &[u32], reading: Reading) -> Result<Prefilled> {
        let mut layers = Vec::new();
        let keep = |_, layer| {
            layers.push(layer);
            Ok(())
        };
        let logits = self.read(tokens, reading, keep)?;
        Ok(Prefilled { layers, logits })
    }

    /// Reads a prompt by dense attention. `each` is given every layer's part, by its number, in
    /// order. Returns the logits after the last token, `[vocab_size]`.
    ///
    /// Cost: `tokens²` of attention; memory for the tokens between two layers, and for the keys and
    /// values of one layer.
    ///
    /// # Errors
    /// [`Error::Input`] if there are no tokens, tokens that the model does not have, or more than
    /// it can place, before anything is read; if logits are not finite; and what `each` says.
    pub fn read(
        &self,
        tokens: &[u32],
        reading: Reading,
        mut each: impl FnMut(usize, LayerPrompt) -> Result<()>,
    ) -> Result<Vec<f32>> {
        self.check_prompt(tokens)?;
        let mut prompt = Prompt::new(self, tokens, reading.block.max(1))?;
        for (number, layer) in self.layers.iter().enumerate() {
            each(number, prompt.pass(layer, reading.observed.min(tokens.len()))?)?;
        }
        let last = prompt.blocks.last().map(|(x, _)| self.logits(x));
        check_finite(last.transpose()?.unwrap_or_default())
    }

    /// Refuses what cannot be the beginning of a sequence.
    pub(crate) fn check_prompt(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::input("tokens", "there are none; expected at least 1"));
        }
        self.check(tokens, 0)
    }
}

/// Logits, if all are finite.
pub(crate) fn check_finite(logits: Vec<f32>) -> Result<Vec<f32>> {
    let Some(i) = logits.iter().position(|logit| !logit.is_finite()) else { return Ok(logits) };
    let reason = format!("that of token {i} is {}; expected finite numbers", logits[i]);
    Err(Error::input("logits", reason))
}

/// The numbers of a tensor `[heads, tokens, dim]`.
pub(crate) fn to_array(tensor: &Tensor) -> Numbers<Array3<f32>> {
    let numbers = tensor.flatten_all()?.to_vec1()?;
    Array3::from_shape_vec(tensor.dims3()?, numbers).map_err(candle_core::Error::wrap)
}

/// A prompt on its way through the layers: runs of tokens `[at most block, hidden_size]`, and the
/// angles of their positions.
struct Prompt {
    blocks: Vec<(Tensor, Angles)>,
}

impl Prompt {
    fn new(model: &Model, tokens: &[u32], block: usize) -> Numbers<Self> {
        let angles = model.rope.angles(0, tokens.len())?;
        let part = |(i, tokens): (usize, &[u32])| {
            Ok((model.embed(tokens)?, angles.narrow(i * block, tokens.len())?))
        };
        let blocks = tokens.chunks(block).enumerate().map(part).collect::<Numbers<_>>()?;
        Ok(Self { blocks })
    }

    /// Goes through a layer.
    fn pass(&mut self, layer: &Layer, observed: usize) -> Numbers<LayerPrompt> {
        let (keys, values) = self.keys_values(layer)?;
        let tokens = keys.dim(1)?;
        let mut seen = Vec::new();
        let mut first = 0;
        for (x, angles) in &mut self.blocks {
            let queries = layer.queries(&layer.normed(x)?, angles)?;
            *x = layer.finish(x, &dense::attend(&queries, &keys, &values, first)?)?;
            let count = queries.dim(1)?;
            let from = (tokens - observed).max(first);
            if from < first + count {
                seen.push(queries.narrow(1, from - first, first + count - from)?);
            }
            first += count;
        }
        let queries = if seen.is_empty() {
            Array3::zeros((layer.query_heads(), 0, keys.dim(2)?))
        } else {
            to_array(&Tensor::cat(&seen, 1)?)?
        };
        Ok(LayerPrompt { keys: to_array(&keys)?, values: to_array(&values)?, queries })
    }

    /// Keys and values of the whole prompt, `[kv_heads, tokens, head_dim]`.
    fn keys_values(&self, layer: &Layer) -> Numbers<(Tensor, Tensor)> {
        let parts = self.blocks.iter().map(|(x, angles)| {
            let normed = layer.normed(x)?;
            layer.keys_values(&normed, angles)
        });
        let (keys, values): (Vec<_>, Vec<_>) =
            parts.collect::<Numbers<Vec<_>>>()?.into_iter().unzip();
        Ok((Tensor::cat(&keys, 1)?, Tensor::cat(&values, 1)?))
    }
}
