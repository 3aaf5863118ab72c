//! End of a prompt, which the same prompt copies instead of reading its last tokens again.

use ndarray::{Array3, s};

use super::{LayerPrompt, Prefilled};

/// Results of a prompt that its [blocks](super::PromptBlock) do not contain: the rows of its last
/// tokens, the observed queries, and the logits.
#[derive(Clone, Debug)]
pub struct PromptTail {
    /// Number of tokens before the tail.
    first: usize,
    layers: Vec<LayerTail>,
    /// Logits after the last token, `[vocab_size]`.
    logits: Vec<f32>,
}

/// Part of one layer.
#[derive(Clone, Debug)]
struct LayerTail {
    /// `[kv_heads, tokens, head_dim]`
    keys: Array3<f32>,
    /// `[kv_heads, tokens, value_dim]`
    values: Array3<f32>,
    /// `[query_heads, observed, head_dim]`
    queries: Array3<f32>,
    /// Read pairs of each block of the tail.
    read_pairs: Vec<u64>,
}

impl PromptTail {
    /// Copies the end of a prompt that was read in blocks of `block` tokens: everything after its
    /// [sharable blocks](super::PromptReader::sharable_blocks).
    pub fn copy(prompt: &Prefilled, block: usize) -> Self {
        let blocks = prompt.sharable_blocks(block);
        let first = blocks * block;
        let copy = |layer: &LayerPrompt| LayerTail {
            keys: layer.keys.slice(s![.., first.., ..]).to_owned(),
            values: layer.values.slice(s![.., first.., ..]).to_owned(),
            queries: layer.queries.clone(),
            read_pairs: layer.read_pairs[blocks..].to_vec(),
        };
        let layers = prompt.layers.iter().map(copy).collect();
        Self { first, layers, logits: prompt.logits.clone() }
    }

    /// Writes the tail to a prompt of the same tokens.
    ///
    /// # Panics
    /// Panics if the prompt does not have the tail's number of tokens and layers.
    pub(super) fn paste(&self, prompt: &mut Prefilled) {
        assert_eq!(self.layers.len(), prompt.layers.len(), "layers of a tail");
        for (layer, tail) in prompt.layers.iter_mut().zip(&self.layers) {
            layer.keys.slice_mut(s![.., self.first.., ..]).assign(&tail.keys);
            layer.values.slice_mut(s![.., self.first.., ..]).assign(&tail.values);
            layer.queries.assign(&tail.queries);
            layer.read_pairs.extend(&tail.read_pairs);
        }
        prompt.logits.clone_from(&self.logits);
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        let size = |layer: &LayerTail| layer.keys.len() + layer.values.len() + layer.queries.len();
        4 * (self.layers.iter().map(size).sum::<usize>() + self.logits.len()) as u64
    }
}
