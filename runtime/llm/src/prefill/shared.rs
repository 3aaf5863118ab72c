//! Prompt blocks, which later prompts with the same prefix copy.

use std::ops::Range;

use ndarray::{Array3, ArrayView3, s};

use super::LayerPrompt;
use crate::Model;

/// Numbers of layers, KV heads, tokens and elements of a model's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    layers: usize,
    kv_heads: usize,
    tokens: usize,
    head_dim: usize,
    value_dim: usize,
}

/// Keys and values of one block of a prompt's tokens in all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptBlock {
    layers: Vec<LayerBlock>,
}

/// Keys and values of one block in one layer, and the number of token-key pairs that its attention
/// read.
#[derive(Clone, Debug, PartialEq)]
struct LayerBlock {
    /// `[kv_heads, tokens, head_dim]`
    keys: Vec<f32>,
    /// `[kv_heads, tokens, value_dim]`
    values: Vec<f32>,
    read_pairs: u64,
}

impl BlockShape {
    /// Returns the shape of a model's blocks of `tokens` tokens.
    pub fn new(model: &Model, tokens: usize) -> Self {
        let (shape, layers) = (model.config().shape, model.config().layers);
        let (kv_heads, head_dim, value_dim) = (shape.kv_heads, shape.head_dim, shape.value_dim);
        Self { layers, kv_heads, tokens, head_dim, value_dim }
    }

    /// Returns the numbers of elements of a layer's keys and of its values.
    fn numbers(&self) -> [usize; 2] {
        [self.head_dim, self.value_dim].map(|dim| self.kv_heads * self.tokens * dim)
    }
}

impl PromptBlock {
    /// Copies the rows of block `i` from all layers of a prompt.
    pub(super) fn copy(layers: &[LayerPrompt], tokens: Range<usize>, i: usize) -> Self {
        let copy = |layer: &LayerPrompt| LayerBlock {
            keys: layer.keys.slice(s![.., tokens.clone(), ..]).iter().copied().collect(),
            values: layer.values.slice(s![.., tokens.clone(), ..]).iter().copied().collect(),
            read_pairs: layer.read_pairs[i],
        };
        Self { layers: layers.iter().map(copy).collect() }
    }

    /// Writes the rows to the positions `tokens` in all layers of a prompt.
    pub(super) fn paste(&self, layers: &mut [LayerPrompt], tokens: Range<usize>) {
        assert_eq!(self.layers.len(), layers.len(), "layers of a block");
        for (prompt, block) in layers.iter_mut().zip(&self.layers) {
            paste_rows(&block.keys, &mut prompt.keys, tokens.clone());
            paste_rows(&block.values, &mut prompt.values, tokens.clone());
            prompt.read_pairs.push(block.read_pairs);
        }
    }

    /// Size of the keys and values, in bytes.
    pub fn bytes(&self) -> u64 {
        let numbers = self.layers.iter().map(|layer| layer.keys.len() + layer.values.len());
        4 * numbers.sum::<usize>() as u64
    }

    /// Returns the block as bytes, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes() as usize + 8 * self.layers.len());
        for layer in &self.layers {
            bytes.extend(layer.read_pairs.to_le_bytes());
            for number in layer.keys.iter().chain(&layer.values) {
                bytes.extend(number.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads a block from the bytes of [`to_bytes`](Self::to_bytes); `None` if their number does
    /// not match the shape, or a number is not finite.
    pub fn from_bytes(shape: BlockShape, bytes: &[u8]) -> Option<Self> {
        let [keys, values] = shape.numbers();
        let layer_bytes = 8 + 4 * (keys + values);
        if bytes.len() != shape.layers * layer_bytes {
            return None;
        }
        let read = |bytes: &[u8]| {
            let (read_pairs, numbers) = bytes.split_first_chunk()?;
            let (numbers, _) = numbers.as_chunks();
            let mut keys_values: Vec<f32> =
                numbers.iter().map(|&number| f32::from_le_bytes(number)).collect();
            if !keys_values.iter().all(|number| number.is_finite()) {
                return None;
            }
            let values = keys_values.split_off(keys);
            Some(LayerBlock {
                keys: keys_values,
                values,
                read_pairs: u64::from_le_bytes(*read_pairs),
            })
        };
        let layers = bytes.chunks_exact(layer_bytes).map(read).collect::<Option<_>>()?;
        Some(Self { layers })
    }
}

/// Copies rows `[heads, tokens, dim]` to the positions `tokens` of `[heads, all, dim]`.
fn paste_rows(rows: &[f32], into: &mut Array3<f32>, tokens: Range<usize>) {
    let (heads, _, dim) = into.dim();
    let rows = ArrayView3::from_shape((heads, tokens.len(), dim), rows);
    into.slice_mut(s![.., tokens, ..]).assign(&rows.expect("a block of this model"));
}
