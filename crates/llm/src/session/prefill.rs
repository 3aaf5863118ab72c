//! Reading a prompt, layer by layer, with everything visible that is not later.

use candle_core::{Result as Numbers, Tensor};
use vattention_core::Attention;

use super::{Session, to_array};
use crate::layer::Layer;
use crate::rope::Angles;
use crate::{Error, Result, dense};

/// A prompt on its way through the layers: runs of tokens `[at most block, hidden_size]`, and the
/// angles of their positions.
struct Prompt {
    blocks: Vec<(Tensor, Angles)>,
}

impl Session<'_> {
    /// Reads a prompt by dense attention, as the first thing in a sequence, and returns the logits
    /// after its last token, `[vocab_size]`. Selectors are shown its last queries.
    ///
    /// Cost: `tokens²` of attention; memory for the tokens between two layers, and for the keys and
    /// values of one layer beside those that the backend keeps.
    ///
    /// # Errors
    /// [`Error::Input`] if there are no tokens, tokens that the model does not have, or more than
    /// it can place, or if the sequence is not empty: then nothing has changed. If a layer fails,
    /// the sequence is lost.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_not_lost()?;
        if tokens.is_empty() {
            return Err(Error::input("tokens", "there are none; expected at least 1"));
        }
        if !self.is_empty() {
            let reason = format!(
                "the sequence has {} tokens already; expected none, or `step` for more",
                self.len
            );
            return Err(Error::input("prefill", reason));
        }
        self.model.check(tokens, 0)?;
        self.grow(tokens.len(), |session| session.read(tokens))
    }

    fn read(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let angles = self.model.rope.angles(0, tokens.len())?;
        let block = |(i, tokens): (usize, &[u32])| {
            Ok((self.model.embed(tokens)?, angles.narrow(i * self.block, tokens.len())?))
        };
        let blocks = tokens.chunks(self.block).enumerate().map(block).collect::<Numbers<_>>()?;
        let mut prompt = Prompt { blocks };
        let observed = self.observed.min(tokens.len());
        let layers = self.model.layers.iter().zip(&mut self.layers).enumerate();
        for (number, (layer, attention)) in layers {
            let failed = |source| Error::Attention { layer: number, source };
            prompt.pass(layer, attention.as_mut(), observed, failed)?;
        }
        let last = prompt.blocks.last().map(|(x, _)| self.model.logits(x));
        Ok(last.transpose()?.unwrap_or_default())
    }
}

impl Prompt {
    /// Goes through a layer, and leaves keys, values and the last queries with its attention.
    fn pass(
        &mut self,
        layer: &Layer,
        attention: &mut dyn Attention,
        observed: usize,
        failed: impl Fn(vattention_core::Error) -> Error,
    ) -> Result<()> {
        let (keys, values) = self.keys_values(layer)?;
        attention.append(to_array(&keys)?.view(), to_array(&values)?.view()).map_err(&failed)?;
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
        if observed > 0 {
            let seen = to_array(&Tensor::cat(&seen, 1)?)?;
            attention.observe(seen.view()).map_err(&failed)?;
        }
        Ok(())
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
