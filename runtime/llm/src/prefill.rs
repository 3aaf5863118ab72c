//! Prefill: reads a prompt, layer by layer, by dense attention or another strategy.

pub(crate) mod reads;
mod sample_attention;
mod strategy;

use ndarray::{Array3, Axis, s};
use rayon::prelude::*;

use crate::dense::Causal;
use crate::inputs::LinearInputs;
use crate::layer::DecoderLayer;
use crate::linear::LinearScratch;
use crate::rope::Table;
use crate::{Error, Model, Result};

use reads::{QueryBlock, Reads, TILE, causal_pairs};
pub use sample_attention::SampleAttention;
pub use strategy::Strategy;

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
        Self { block: 512, observed: 64, strategy: Strategy::Dense }
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
}

impl LayerPrompt {
    /// Share of the causal token-key pairs that were read, averaged over KV heads: 1 for dense
    /// attention.
    pub fn density(&self) -> f64 {
        let (kv_heads, tokens, _) = self.keys.dim();
        let causal = kv_heads as u64 * causal_pairs(0, tokens);
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
    /// Mean of [`LayerPrompt::density`] over layers.
    pub fn density(&self) -> f64 {
        let sum: f64 = self.layers.iter().map(LayerPrompt::density).sum();
        sum / self.layers.len() as f64
    }

    /// Returns the length of the common prefix with another prompt.
    fn common_prefix(&self, tokens: &[u32]) -> usize {
        self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
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
        other: Option<&Prefilled>,
        tokens: &[u32],
        options: PrefillOptions,
    ) -> Result<Prefilled> {
        let mut layers = Vec::new();
        let collect = |_, layer| {
            layers.push(layer);
            Ok(())
        };
        let logits = self.read_after(other, tokens, options, collect)?;
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

    fn read_after(
        &self,
        other: Option<&Prefilled>,
        tokens: &[u32],
        options: PrefillOptions,
        mut on_layer: impl FnMut(usize, LayerPrompt) -> Result<()>,
    ) -> Result<Vec<f32>> {
        self.check_prompt(tokens)?;
        if let Some(other) = other {
            self.check_layers(other)?;
        }
        let observed = options.observed.min(tokens.len());
        // The shared prefix ends before the last token, from which the logits are computed, and
        // before the tokens whose queries are returned.
        let longest = tokens.len() - observed.max(1);
        let (common_prefix, block) =
            (other.map_or(0, |other| other.common_prefix(tokens)), options.block.max(1));
        // Only whole blocks are shared, so that the other blocks are the same as without sharing.
        let shared = common_prefix.min(longest) / block * block;
        let mut prompt = PromptState::new(self, tokens, shared, block, options.strategy);
        for (number, layer) in self.layers.iter().enumerate() {
            let known = other.map(|other| &other.layers[number]);
            on_layer(number, prompt.run_layer(layer, known, observed))?;
        }
        check_finite(self.logits(&prompt.x))
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

/// Returns the logits if all are finite.
pub(crate) fn check_finite(logits: Vec<f32>) -> Result<Vec<f32>> {
    let Some(i) = logits.iter().position(|logit| !logit.is_finite()) else { return Ok(logits) };
    let reason = format!("that of token {i} is {}; expected finite numbers", logits[i]);
    Err(Error::input("logits", reason))
}

/// State of a prompt between two layers.
struct PromptState<'m> {
    model: &'m Model,
    /// Input of the next layer for the tokens after the shared prefix,
    /// `[tokens - shared, hidden_size]`.
    x: Vec<f32>,
    table: Table,
    /// Number of tokens in the shared prefix, whose keys and values are copied.
    shared: usize,
    /// Number of tokens that go through a layer together.
    block: usize,
    strategy: Strategy,
    /// `[block, hidden_size]`
    normed: Vec<f32>,
    /// Keys or values, queries, and attention outputs of one block.
    rows: [Vec<f32>; 3],
    scratch: LinearScratch,
}

impl<'m> PromptState<'m> {
    fn new(
        model: &'m Model,
        tokens: &[u32],
        shared: usize,
        block: usize,
        strategy: Strategy,
    ) -> Self {
        Self {
            model,
            x: model.embed(&tokens[shared..]),
            table: model.rope.table(shared, tokens.len() - shared),
            shared,
            block,
            strategy,
            normed: Vec::new(),
            rows: Default::default(),
            scratch: LinearScratch::default(),
        }
    }

    /// Runs a layer on the prompt. `known` is the layer's result for at least the shared prefix.
    fn run_layer(
        &mut self,
        layer: &DecoderLayer,
        known: Option<&LayerPrompt>,
        observed: usize,
    ) -> LayerPrompt {
        let shape = self.model.config().shape;
        let total = self.shared + self.x.len() / self.model.config().hidden_size;
        let mut keys = Array3::zeros((shape.kv_heads, total, shape.head_dim));
        let mut values = Array3::zeros((shape.kv_heads, total, shape.value_dim));
        if let Some(prompt) = known {
            let part = s![.., ..self.shared, ..];
            keys.slice_mut(part).assign(&prompt.keys.slice(part));
            values.slice_mut(part).assign(&prompt.values.slice(part));
        }
        self.compute_keys_values(layer, &mut keys, &mut values);
        let mut queries = Array3::zeros((shape.query_heads, observed, shape.head_dim));
        let known_blocks = known.iter().flat_map(|prompt| &prompt.read_pairs);
        let mut read_pairs: Vec<u64> =
            known_blocks.take(self.shared / self.block).copied().collect();
        read_pairs.extend(self.attend(layer, &keys, &values, &mut queries));
        LayerPrompt { keys, values, queries, read_pairs }
    }

    /// Computes the keys and values of the tokens after the shared prefix, into their positions.
    fn compute_keys_values(
        &mut self,
        layer: &DecoderLayer,
        keys: &mut Array3<f32>,
        values: &mut Array3<f32>,
    ) {
        let hidden = self.model.config().hidden_size;
        let Self { x, table, shared, block, normed, rows: [rows, ..], scratch, .. } = self;
        for (i, x) in x.chunks(*block * hidden).enumerate() {
            let (first, count) = (i * *block, x.len() / hidden);
            let angles = table.all().narrow(first, count);
            normed.resize(x.len(), 0.0);
            layer.normalise_input(x, normed);
            let inputs = LinearInputs::new(normed, count);
            rows.resize(count * keys.dim().0 * keys.dim().2, 0.0);
            layer.keys(&inputs, angles, rows, scratch);
            spread(rows, keys, *shared + first);
            rows.resize(count * values.dim().0 * values.dim().2, 0.0);
            layer.values(&inputs, rows, scratch);
            spread(rows, values, *shared + first);
        }
    }

    /// Runs attention and the rest of the layer, and fills `observed` with the queries of the last
    /// tokens. Returns the number of token-key pairs that each block read.
    fn attend(
        &mut self,
        layer: &DecoderLayer,
        keys: &Array3<f32>,
        values: &Array3<f32>,
        observed: &mut Array3<f32>,
    ) -> Vec<u64> {
        let (hidden, shape) = (self.model.config().hidden_size, self.model.config().shape);
        let Self { x, table, shared, block, strategy, normed, rows, scratch, .. } = self;
        let ([_, queries, attended], mut pairs) = (rows, Vec::new());
        let unseen = keys.dim().1 - observed.dim().1;
        for (i, x) in x.chunks_mut(*block * hidden).enumerate() {
            let (first, count) = (i * *block, x.len() / hidden);
            let angles = table.all().narrow(first, count);
            let first = *shared + first;
            normed.resize(x.len(), 0.0);
            layer.normalise_input(x, normed);
            queries.resize(count * shape.query_heads * shape.head_dim, 0.0);
            layer.queries(&LinearInputs::new(normed, count), angles, queries, scratch);
            attended.resize(count * shape.query_heads * shape.value_dim, 0.0);
            let reads = choose(*strategy, queries, shape.query_heads, keys, first);
            pairs.push(read_pairs(&reads, first, count));
            let query_heads = shape.query_heads;
            let causal = Causal { query_heads, keys, values, first, reads: &reads };
            causal.attend(queries, attended);
            layer.finish(x, attended, normed, scratch);
            let skipped = unseen.saturating_sub(first).min(count);
            let last_queries = &queries[skipped * shape.query_heads * shape.head_dim..];
            spread(last_queries, observed, (first + skipped).saturating_sub(unseen));
        }
        pairs
    }
}

/// Chooses the keys that each tile of a block's queries `[count, query_heads, head_dim]` reads, for
/// each KV head.
fn choose(
    strategy: Strategy,
    queries: &[f32],
    query_heads: usize,
    keys: &Array3<f32>,
    first: usize,
) -> Vec<Option<Vec<Reads>>> {
    let (kv_heads, _, head_dim) = keys.dim();
    let group = query_heads / kv_heads;
    let choose_head = |head: usize| {
        let keys = keys.index_axis(Axis(0), head).to_slice().expect("arrays in standard order");
        let first_head = head * group;
        strategy.choose(&QueryBlock {
            queries,
            query_heads,
            first_head,
            group,
            keys,
            head_dim,
            first,
        })
    };
    (0..kv_heads).into_par_iter().map(choose_head).collect()
}

/// Number of token-key pairs that a block of `count` tokens read, summed over KV heads.
fn read_pairs(reads: &[Option<Vec<Reads>>], first: usize, count: usize) -> u64 {
    let count_tile =
        |(i, reads): (usize, &Reads)| reads.pairs(first + i * TILE, TILE.min(count - i * TILE));
    let count_head = |tiles: &Option<Vec<Reads>>| match tiles {
        None => causal_pairs(first, count),
        Some(tiles) => tiles.iter().enumerate().map(count_tile).sum(),
    };
    reads.iter().map(count_head).sum()
}

/// Copies rows `[tokens, heads, dim]` to the positions of tokens from `first` on of
/// `[heads, all, dim]`.
fn spread(rows: &[f32], into: &mut Array3<f32>, first: usize) {
    let (heads, _, dim) = into.dim();
    for (i, token) in rows.chunks_exact(heads * dim).enumerate() {
        for (head, row) in token.chunks_exact(dim).enumerate() {
            let place = into.slice_mut(s![head, first + i, ..]).into_slice();
            place.expect("arrays in standard order").copy_from_slice(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_over_heads_and_tiles() {
        let all = Reads::new(&[].into(), 0);
        let some = Reads::new(&[2, 3].into(), 10);
        let (first, count) = (10, TILE + 6);
        let causal = causal_pairs(first, count);
        let heads = [None, Some(vec![all.clone(), all])];
        assert_eq!(read_pairs(&heads, first, count), 2 * causal);
        let heads = [None, Some(vec![some.clone(), some])];
        assert_eq!(read_pairs(&heads, first, count), 2 * causal - 8 * count as u64);
    }
}
