//! Header of a saved session, and the tensors that follow it.

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use vattention_core::Storage;

use super::numbers::{storage_dtype, stored_dim};
use crate::Config;

/// Name of the format, without its version.
pub(super) const FAMILY: &str = "vattention-session-";

/// Name and version of the format; the metadata of the file contains the header under this key.
pub(super) const FORMAT: &str = "vattention-session-2";

/// Name of the digest's tensor, and its number of bytes.
pub(super) const DIGEST: &str = "digest";
pub(super) const DIGEST_BYTES: usize = 32;

pub(super) const TOKENS: &str = "tokens";
pub(super) const LOGITS: &str = "logits";

/// Description of a saved session, as JSON in the file's metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedHeader {
    /// Digest of the model.
    pub(super) model: String,
    /// Pipeline file with all settings.
    pub(super) pipeline: String,
    /// Options of the prefill, in words.
    pub(super) prefill: String,
    /// Share of the causal token-key pairs that the prefill read.
    pub(super) prefill_density: Option<f64>,
    /// Name of the number type of keys and values.
    pub(super) storage: String,
    /// True if queries, keys and values are [rotated](crate::rotates_rows).
    pub(super) rotated: bool,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// Number of the next step.
    pub(super) step: u32,
    /// Prompts whose last queries were observed.
    pub(super) prompts: Vec<PromptEnd>,
    /// Text of the tokens, if it is known.
    pub(super) text: Option<String>,
}

/// End of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PromptEnd {
    /// Number of tokens of the sequence at the end of the prompt.
    pub(super) tokens: usize,
    /// Number of observed queries.
    pub(super) queries: usize,
}

/// Name, number type and shape of a tensor.
pub(super) struct TensorLayout {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

impl TensorLayout {
    pub(super) fn new(name: impl Into<String>, dtype: Dtype, shape: &[usize]) -> Self {
        Self { name: name.into(), dtype, shape: shape.to_vec() }
    }
}

impl SavedHeader {
    pub(super) fn storage(&self) -> Option<Storage> {
        self.storage.parse().ok()
    }

    /// Tensors of the file, in order, without the digest.
    pub(super) fn tensors(&self, config: &Config, storage: Storage) -> Vec<TensorLayout> {
        let logits = TensorLayout::new(LOGITS, Dtype::F32, &[config.vocab_size]);
        let mut all = vec![TensorLayout::new(TOKENS, Dtype::U32, &[self.tokens]), logits];
        for layer in 0..config.layers {
            let [keys, values] = self.row_tensors(layer, config, storage);
            all.extend([keys, values]);
            let prompts = 0..self.prompts_of(layer, config);
            all.extend(prompts.map(|i| self.query_tensor(layer, i, config)));
            all.push(first_sizes_tensor(layer, config));
        }
        all
    }

    /// Number of prompts that a layer observed: sliding layers observe none.
    pub(super) fn prompts_of(&self, layer: usize, config: &Config) -> usize {
        if config.window(layer).is_none() { self.prompts.len() } else { 0 }
    }

    /// First token whose keys and values are saved. After a step, sliding layers have only those of
    /// their window.
    pub(super) fn first_row(&self, layer: usize, config: &Config) -> usize {
        match config.window(layer) {
            Some(window) if self.step > 0 => window.first(self.tokens.saturating_sub(1)),
            _ => 0,
        }
    }

    /// Keys and values of a layer.
    pub(super) fn row_tensors(
        &self,
        layer: usize,
        config: &Config,
        storage: Storage,
    ) -> [TensorLayout; 2] {
        let (shape, dtype) = (config.shape, storage_dtype(storage));
        [("keys", shape.head_dim), ("values", shape.value_dim)].map(|(name, dim)| {
            let tokens = self.tokens - self.first_row(layer, config);
            let shape = [shape.kv_heads, tokens, stored_dim(dim, storage)];
            TensorLayout::new(format!("layers.{layer}.{name}"), dtype, &shape)
        })
    }

    /// Observed queries of prompt `i` in a layer.
    pub(super) fn query_tensor(&self, layer: usize, i: usize, config: &Config) -> TensorLayout {
        let shape = [config.shape.query_heads, self.prompts[i].queries, config.shape.head_dim];
        TensorLayout::new(format!("layers.{layer}.queries.{i}"), Dtype::F32, &shape)
    }
}

/// Tensor of the first sample sizes that a layer has learned.
pub(super) fn first_sizes_tensor(layer: usize, config: &Config) -> TensorLayout {
    let name = format!("layers.{layer}.first_sizes");
    TensorLayout::new(name, Dtype::U64, &[config.shape.query_heads])
}
