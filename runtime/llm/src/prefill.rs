//! Reading a prompt, layer by layer, by dense attention or another strategy.

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

/// How a prompt is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillOptions {
    /// Tokens that go through a layer at once, at least 1. The results depend on it by rounding
    /// alone, which is to 8 bits where a last block of one token is multiplied as a decoded one is
    /// ([`Model`]); memory grows with it.
    pub block: usize,
    /// The last queries that are kept: for selectors, more than any of them asks for by default.
    pub observed: usize,
    /// Which keys its queries read. A strategy may choose anew for each block.
    pub strategy: Strategy,
}

impl Default for PrefillOptions {
    fn default() -> Self {
        Self { block: 512, observed: 64, strategy: Strategy::Dense }
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
    /// Pairs of a token and a key that were read, over KV heads: of each block of tokens.
    pub read_pairs: Vec<u64>,
}

impl LayerPrompt {
    /// Pairs of a token and a key that were read, as a share of those that are causal: the mean over KV
    /// heads. 1 by dense attention.
    pub fn density(&self) -> f64 {
        let (kv_heads, tokens, _) = self.keys.dim();
        let causal = kv_heads as u64 * causal_pairs(0, tokens);
        self.read_pairs.iter().sum::<u64>() as f64 / causal as f64
    }
}

/// A prompt that was read once, for several sequences to go on from.
#[derive(Clone, Debug)]
pub struct Prefilled {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// One for each layer.
    pub layers: Vec<LayerPrompt>,
    /// After the last token, `[vocab_size]`.
    pub logits: Vec<f32>,
}

impl Prefilled {
    /// The mean [`LayerPrompt::density`] over layers.
    pub fn density(&self) -> f64 {
        let sum: f64 = self.layers.iter().map(LayerPrompt::density).sum();
        sum / self.layers.len() as f64
    }

    /// How many tokens both prompts begin with.
    fn common(&self, tokens: &[u32]) -> usize {
        self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }
}

impl Model {
    /// Reads a prompt, and keeps all of it.
    ///
    /// Cost: as [`read`](Self::read); 4 bytes for each number of keys and values.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn prefill(&self, tokens: &[u32], reading: PrefillOptions) -> Result<Prefilled> {
        self.prefill_after(None, tokens, reading)
    }

    /// As [`prefill`](Self::prefill); of a prompt that begins as another does, blocks that they have in
    /// common are taken from there. The results are the same to the last bit, if the other was read with
    /// the same options.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Input`] if the other is of a model with other layers.
    pub fn prefill_after(
        &self,
        other: Option<&Prefilled>,
        tokens: &[u32],
        reading: PrefillOptions,
    ) -> Result<Prefilled> {
        let mut layers = Vec::new();
        let keep = |_, layer| {
            layers.push(layer);
            Ok(())
        };
        let logits = self.read_after(other, tokens, reading, keep)?;
        Ok(Prefilled { tokens: tokens.to_vec(), layers, logits })
    }

    /// Reads a prompt. `each` is given every layer's part, by its number, in
    /// order. Returns the logits after the last token, `[vocab_size]`.
    ///
    /// Cost: 2 operations for each weight and token, and those of attention, whose
    /// pairs are `tokens² / 2` if it is dense; memory for the
    /// tokens between two layers, for the keys and values of one layer, and for one matrix in f32 if
    /// weights are stored otherwise.
    ///
    /// # Errors
    /// [`Error::Input`] if there are no tokens, tokens that the model does not have, or more than
    /// it can place, before anything is read; if logits are not finite; and what `each` says.
    pub fn read(
        &self,
        tokens: &[u32],
        reading: PrefillOptions,
        each: impl FnMut(usize, LayerPrompt) -> Result<()>,
    ) -> Result<Vec<f32>> {
        self.read_after(None, tokens, reading, each)
    }

    fn read_after(
        &self,
        other: Option<&Prefilled>,
        tokens: &[u32],
        reading: PrefillOptions,
        mut each: impl FnMut(usize, LayerPrompt) -> Result<()>,
    ) -> Result<Vec<f32>> {
        self.check_prompt(tokens)?;
        if let Some(other) = other {
            self.check_layers(other)?;
        }
        let observed = reading.observed.min(tokens.len());
        // The last token is read in any case, since the logits are of it, and so are those whose
        // queries are kept.
        let most = tokens.len() - observed.max(1);
        let (common, block) = (other.map_or(0, |other| other.common(tokens)), reading.block.max(1));
        // Whole blocks, so that the others are computed as if all were.
        let known = common.min(most) / block * block;
        let mut prompt = PromptQueries::new(self, tokens, known, block, reading.strategy);
        for (number, layer) in self.layers.iter().enumerate() {
            let known = other.map(|other| &other.layers[number]);
            each(number, prompt.pass(layer, known, observed))?;
        }
        check_finite(self.logits(&prompt.x))
    }

    /// Refuses what was read by a model with other layers.
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
        let reason = format!("a layer is not of {tokens} tokens of the model's heads, {shape:?}");
        Err(Error::input("prefill", reason))
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

/// A prompt on its way through the layers.
struct PromptQueries<'m> {
    model: &'m Model,
    /// What the next layer reads of the tokens that are not known, `[tokens - known, hidden_size]`.
    x: Vec<f32>,
    table: Table,
    /// Tokens whose keys and values are there already.
    known: usize,
    /// Tokens that go through a layer at once.
    block: usize,
    strategy: Strategy,
    /// `[block, hidden_size]`
    normed: Vec<f32>,
    /// Of a block: keys or values, queries, and what attention makes of them.
    rows: [Vec<f32>; 3],
    scratch: LinearScratch,
}

impl<'m> PromptQueries<'m> {
    fn new(
        model: &'m Model,
        tokens: &[u32],
        known: usize,
        block: usize,
        strategy: Strategy,
    ) -> Self {
        Self {
            model,
            x: model.embed(&tokens[known..]),
            table: model.rope.table(known, tokens.len() - known),
            known,
            block,
            strategy,
            normed: Vec::new(),
            rows: Default::default(),
            scratch: LinearScratch::default(),
        }
    }

    /// Goes through a layer. What is `known` of it covers at least these tokens.
    fn pass(
        &mut self,
        layer: &DecoderLayer,
        known: Option<&LayerPrompt>,
        observed: usize,
    ) -> LayerPrompt {
        let shape = self.model.config().shape;
        let total = self.known + self.x.len() / self.model.config().hidden_size;
        let mut keys = Array3::zeros((shape.kv_heads, total, shape.head_dim));
        let mut values = Array3::zeros((shape.kv_heads, total, shape.value_dim));
        if let Some(prompt) = known {
            let part = s![.., ..self.known, ..];
            keys.slice_mut(part).assign(&prompt.keys.slice(part));
            values.slice_mut(part).assign(&prompt.values.slice(part));
        }
        self.keys_values(layer, &mut keys, &mut values);
        let mut queries = Array3::zeros((shape.query_heads, observed, shape.head_dim));
        let known_blocks = known.iter().flat_map(|prompt| &prompt.read_pairs);
        let mut read_pairs: Vec<u64> =
            known_blocks.take(self.known / self.block).copied().collect();
        read_pairs.extend(self.attend(layer, &keys, &values, &mut queries));
        LayerPrompt { keys, values, queries, read_pairs }
    }

    /// Keys and values of the tokens that are not known, into their places.
    fn keys_values(
        &mut self,
        layer: &DecoderLayer,
        keys: &mut Array3<f32>,
        values: &mut Array3<f32>,
    ) {
        let hidden = self.model.config().hidden_size;
        let Self { x, table, known, block, normed, rows: [rows, ..], scratch, .. } = self;
        for (i, x) in x.chunks(*block * hidden).enumerate() {
            let (first, count) = (i * *block, x.len() / hidden);
            let angles = table.all().narrow(first, count);
            normed.resize(x.len(), 0.0);
            layer.normed(x, normed);
            let inputs = LinearInputs::new(normed, count);
            rows.resize(count * keys.dim().0 * keys.dim().2, 0.0);
            layer.keys(&inputs, angles, rows, scratch);
            spread(rows, keys, *known + first);
            rows.resize(count * values.dim().0 * values.dim().2, 0.0);
            layer.values(&inputs, rows, scratch);
            spread(rows, values, *known + first);
        }
    }

    /// Attention and what comes after it. Keeps the queries of the last tokens, as many as there is
    /// room for. Returns the pairs that each block read.
    fn attend(
        &mut self,
        layer: &DecoderLayer,
        keys: &Array3<f32>,
        values: &Array3<f32>,
        observed: &mut Array3<f32>,
    ) -> Vec<u64> {
        let (hidden, shape) = (self.model.config().hidden_size, self.model.config().shape);
        let Self { x, table, known, block, strategy, normed, rows, scratch, .. } = self;
        let ([_, queries, attended], mut pairs) = (rows, Vec::new());
        let unseen = keys.dim().1 - observed.dim().1;
        for (i, x) in x.chunks_mut(*block * hidden).enumerate() {
            let (first, count) = (i * *block, x.len() / hidden);
            let angles = table.all().narrow(first, count);
            let first = *known + first;
            normed.resize(x.len(), 0.0);
            layer.normed(x, normed);
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
            let seen = &queries[skipped * shape.query_heads * shape.head_dim..];
            spread(seen, observed, (first + skipped).saturating_sub(unseen));
        }
        pairs
    }
}

/// What each tile of a block's queries `[count, query_heads, head_dim]` reads of each KV head.
fn choose(
    strategy: Strategy,
    queries: &[f32],
    query_heads: usize,
    keys: &Array3<f32>,
    first: usize,
) -> Vec<Option<Vec<Reads>>> {
    let (kv_heads, _, head_dim) = keys.dim();
    let group = query_heads / kv_heads;
    let of_head = |head: usize| {
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
    (0..kv_heads).into_par_iter().map(of_head).collect()
}

/// Pairs of a token and a key that a block of `count` tokens read, over KV heads.
fn read_pairs(reads: &[Option<Vec<Reads>>], first: usize, count: usize) -> u64 {
    let of_tile =
        |(i, reads): (usize, &Reads)| reads.pairs(first + i * TILE, TILE.min(count - i * TILE));
    let of_head = |tiles: &Option<Vec<Reads>>| match tiles {
        None => causal_pairs(first, count),
        Some(tiles) => tiles.iter().enumerate().map(of_tile).sum(),
    };
    reads.iter().map(of_head).sum()
}

/// Rows `[tokens, heads, dim]` into the places of the tokens from `first` on of `[heads, all, dim]`.
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
    fn pairs_of_every_head_and_tile_are_counted() {
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
