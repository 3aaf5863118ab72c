//! Prefill: reads a prompt, layer by layer, by dense attention or another strategy.

mod block;
mod reader;
pub(crate) mod reads;
mod sample_attention;
mod shared;
mod strategy;
mod tail;

use std::borrow::Cow;

use ndarray::{Array3, s};

use crate::{Config, Error, LayerWindow, Model, Result};

use block::BlockRunner;
pub use reader::PromptReader;
use reads::causal_pairs;
pub use sample_attention::SampleAttention;
pub use shared::{BlockShape, PromptBlock};
pub use strategy::Strategy;
pub use tail::PromptTail;

/// Options of a prefill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillOptions {
    /// Number of tokens that go through a layer together, at least 1. Memory grows with it, and
    /// results depend on it only by rounding.
    pub block: usize,
    /// Number of last queries to return for selectors; the default covers all selectors' defaults.
    pub observed: usize,
    /// Selection of the keys that the queries read. A strategy may choose them anew for each block.
    pub strategy: Strategy,
}

impl Default for PrefillOptions {
    fn default() -> Self {
        Self { block: 256, observed: 64, strategy: Strategy::Dense }
    }
}

/// Keys, values and last queries of a prompt in one layer.
#[derive(Clone, Debug)]
pub struct LayerPrompt {
    /// Keys after rotation, `[kv_heads, tokens, head_dim]`.
    pub keys: Array3<f32>,
    /// Values, `[kv_heads, tokens, value_dim]`.
    pub values: Array3<f32>,
    /// Queries of the last tokens after rotation, `[query_heads, observed, head_dim]`.
    pub queries: Array3<f32>,
    /// Number of token-key pairs that each block of tokens read, summed over KV heads.
    pub read_pairs: Vec<u64>,
    /// Last tokens that a query of this layer attends to; `None` means all.
    pub window: Option<LayerWindow>,
}

impl LayerPrompt {
    /// Returns a layer of `tokens` tokens whose keys and values are still to be computed.
    fn new(config: &Config, layer: usize, tokens: usize, observed: usize) -> Self {
        let shape = &config.shape;
        let observed = observed.min(tokens);
        Self {
            keys: Array3::zeros((shape.kv_heads, tokens, shape.head_dim)),
            values: Array3::zeros((shape.kv_heads, tokens, shape.value_dim)),
            queries: Array3::zeros((shape.query_heads, observed, shape.head_dim)),
            read_pairs: Vec::new(),
            window: config.window(layer),
        }
    }

    /// Copies the first `tokens` tokens, read in blocks of `block` tokens, from another prompt.
    fn copy_prefix(&mut self, other: &Self, tokens: usize, block: usize) {
        let part = s![.., ..tokens, ..];
        self.keys.slice_mut(part).assign(&other.keys.slice(part));
        self.values.slice_mut(part).assign(&other.values.slice(part));
        self.read_pairs.extend(&other.read_pairs[..tokens / block]);
    }

    /// Share of the causal token-key pairs within the layer's window that were read, averaged over
    /// KV heads: 1 for dense attention.
    pub fn density(&self) -> f64 {
        let (kv_heads, tokens, _) = self.keys.dim();
        let causal = kv_heads as u64 * causal_pairs(0, tokens, self.window);
        self.read_pairs.iter().sum::<u64>() as f64 / causal as f64
    }
}

/// Result of a prefill, which several sequences can start from.
#[derive(Clone, Debug)]
pub struct Prefilled {
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Keys, values and queries of each layer.
    pub layers: Vec<LayerPrompt>,
    /// Logits after the last token, `[vocab_size]`.
    pub logits: Vec<f32>,
}

impl Prefilled {
    /// Number of whole blocks of `block` tokens that other prompts may copy: the blocks before the
    /// last token and before the tokens whose queries are observed.
    fn sharable_blocks(&self, block: usize) -> usize {
        let observed = self.layers[0].queries.dim().1;
        (self.tokens.len() - observed.max(1)) / block
    }

    /// Mean of [`LayerPrompt::density`] over full layers, those without a window; 1 if there are
    /// none.
    pub fn density(&self) -> f64 {
        let full = self.layers.iter().filter(|layer| layer.window.is_none());
        mean(full.map(LayerPrompt::density)).unwrap_or(1.0)
    }
}

/// Earlier prompt, whose keys and values a later prompt with a common prefix copies.
pub(crate) trait EarlierPrompt {
    /// Tokens of the earlier prompt.
    fn tokens(&self) -> &[u32];

    /// Keys, values and read pairs of a layer. Layers are requested in order.
    fn layer(&mut self, number: usize) -> Result<Cow<'_, LayerPrompt>>;
}

impl EarlierPrompt for &Prefilled {
    fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn layer(&mut self, number: usize) -> Result<Cow<'_, LayerPrompt>> {
        Ok(Cow::Borrowed(&self.layers[number]))
    }
}

impl Model {
    /// Reads a prompt, and returns the results of all layers.
    ///
    /// Cost: that of [`read`](Self::read), and 4 bytes for each number of keys and values.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn prefill(&self, tokens: &[u32], options: PrefillOptions) -> Result<Prefilled> {
        self.prefill_after(None, tokens, options)
    }

    /// Reads a prompt like [`prefill`](Self::prefill), but copies the blocks of the prefix that it
    /// has in common with `other`. The results are equal to the last bit, if `other` was read with
    /// the same options.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read); [`Error::Input`] if `other` was read by a model with
    /// other layers.
    pub fn prefill_after(
        &self,
        mut other: Option<&Prefilled>,
        tokens: &[u32],
        options: PrefillOptions,
    ) -> Result<Prefilled> {
        if let Some(other) = other {
            self.check_layers(other)?;
        }
        let mut layers = Vec::new();
        let collect = |_, layer| {
            layers.push(layer);
            Ok(())
        };
        let earlier = other.as_mut().map(|other| other as &mut dyn EarlierPrompt);
        let logits = self.read_after(earlier, tokens, options, collect)?;
        Ok(Prefilled { tokens: tokens.to_vec(), layers, logits })
    }

    /// Reads a prompt, and passes the number and the result of every layer to `on_layer`, in order.
    /// Returns the logits after the last token, `[vocab_size]`.
    ///
    /// Cost: 2 operations for each weight and token, and attention over the pairs that the strategy
    /// reads, `tokens² / 2` if it is dense. Memory holds the tokens between two layers, the keys
    /// and values of one layer, and one matrix in f32 if weights are stored in another type.
    ///
    /// # Errors
    /// [`Error::Input`], before anything is read, if `tokens` is empty, contains tokens that the
    /// model does not have, or exceeds the model's context; [`Error::Input`] if logits are not
    /// finite; and the errors of `on_layer`.
    pub fn read(
        &self,
        tokens: &[u32],
        options: PrefillOptions,
        on_layer: impl FnMut(usize, LayerPrompt) -> Result<()>,
    ) -> Result<Vec<f32>> {
        self.read_after(None, tokens, options, on_layer)
    }

    /// Reads a prompt like [`read`](Self::read), but copies the blocks of the prefix that it has in
    /// common with an earlier prompt of the same model and options.
    pub(crate) fn read_after(
        &self,
        mut earlier: Option<&mut dyn EarlierPrompt>,
        tokens: &[u32],
        options: PrefillOptions,
        mut on_layer: impl FnMut(usize, LayerPrompt) -> Result<()>,
    ) -> Result<Vec<f32>> {
        self.check_prompt(tokens)?;
        let observed = options.observed.min(tokens.len());
        // The shared prefix ends before the last token, from which the logits are computed, and
        // before the tokens whose queries are returned.
        let longest = tokens.len() - observed.max(1);
        let same = |earlier: &&mut dyn EarlierPrompt| common_prefix(earlier.tokens(), tokens);
        let (common_prefix, block) = (earlier.as_ref().map_or(0, same), options.block.max(1));
        // Only whole blocks are shared, so that the other blocks are the same as without sharing.
        let shared = common_prefix.min(longest) / block * block;
        let mut x = self.embed(&tokens[shared..]);
        let tables = self.tables(shared..tokens.len());
        let mut runner = BlockRunner::new(options.strategy);
        for (number, layer) in self.layers.iter().enumerate() {
            let mut prompt = LayerPrompt::new(self.config(), number, tokens.len(), observed);
            if let Some(earlier) = &mut earlier {
                prompt.copy_prefix(&*earlier.layer(number)?, shared, block);
            }
            let blocks = x.chunks_mut(block * self.config().hidden_size);
            for (i, x) in blocks.enumerate() {
                runner.run(layer, x, &tables, (shared, i * block), &mut prompt);
            }
            on_layer(number, prompt)?;
        }
        check_finite(self.logits(&x[x.len() - self.config().hidden_size..]))
    }

    /// Refuses the result of a model with other layers.
    pub(crate) fn check_layers(&self, prompt: &Prefilled) -> Result<()> {
        let (found, expected) = (prompt.layers.len(), self.layers.len());
        if found != expected {
            let reason = format!("the prompt has {found} layers; expected the model's {expected}");
            return Err(Error::input("prefill", reason));
        }
        let (shape, tokens) = (self.config().shape, prompt.tokens.len());
        let fits = |part: &LayerPrompt| {
            part.keys.dim() == (shape.kv_heads, tokens, shape.head_dim)
                && part.values.dim() == (shape.kv_heads, tokens, shape.value_dim)
        };
        if prompt.layers.iter().all(fits) {
            return Ok(());
        }
        let reason = format!("a layer has another shape; expected {tokens} tokens and {shape:?}");
        Err(Error::input("prefill", reason))
    }

    /// Refuses tokens that cannot begin a sequence.
    pub(crate) fn check_prompt(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::input("tokens", "there are none; expected at least 1"));
        }
        self.check(tokens, 0)
    }
}

/// Mean of some numbers; `None` if there are none.
pub(crate) fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0), |(sum, count), number| (sum + number, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns the length of the common prefix of two prompts.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the logits if all are finite.
pub(crate) fn check_finite(logits: Vec<f32>) -> Result<Vec<f32>> {
    let Some(i) = logits.iter().position(|logit| !logit.is_finite()) else { return Ok(logits) };
    let reason = format!("that of token {i} is {}; expected finite numbers", logits[i]);
    Err(Error::input("logits", reason))
}
