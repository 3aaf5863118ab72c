//! Metadata of a trace, and dimensions and tensors of its layers.

use std::ops::Range;

use ndarray::Array3;
use vattention_core::{Shape, SoftmaxForm, Storage, TokenClass};

pub(super) const FORMAT: &str = "vattention-trace/1";

/// Metadata of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceInfo {
    /// Factor of queries; `None` for `1 / √head_dim`.
    pub scale: Option<f32>,
    /// Model from which the trace was captured.
    pub model: Option<String>,
    /// Text on which the trace was captured.
    pub source: Option<String>,
    /// Header, in JSON, of a trace that has only a shard of a model's layers: the number of the
    /// shard, and the inputs that all shards have in common.
    pub share: Option<String>,
}

/// Dimensions of a layer, which are known without reading its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "one for each optional tensor")]
pub struct Layout {
    /// Heads and their dimensions.
    pub shape: Shape,
    /// Number of tokens in the cache.
    pub tokens: usize,
    /// Number of queries.
    pub queries: usize,
    /// Number of prompt queries; may be 0.
    pub prompt: usize,
    /// True if each query has its own number of visible tokens.
    pub causal: bool,
    /// True if the classes of tokens are known.
    pub classes: bool,
    /// True if logits are capped.
    pub soft_cap: bool,
    /// True if query heads have attention sinks.
    pub sinks: bool,
    /// Number type of cached keys and values: that of the file, unless another was
    /// [chosen](crate::Trace::stored_in).
    pub storage: Storage,
}

/// Tensors of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceLayer {
    /// Unscaled queries, `[query_heads, queries, head_dim]`.
    pub queries: Array3<f32>,
    /// Keys, `[kv_heads, tokens, head_dim]`.
    pub keys: Array3<f32>,
    /// Values, `[kv_heads, tokens, value_dim]`.
    pub values: Array3<f32>,
    /// Number of visible tokens of each query, `[queries]`; `None` for all.
    pub visible: Option<Vec<usize>>,
    /// Unscaled queries of the prompt's last tokens, `[query_heads, prompt, head_dim]`.
    pub prompt: Option<Array3<f32>>,
    /// Length of the prompt in tokens, at least the number of prompt queries; `None` if all tokens
    /// are the prompt.
    pub prompt_tokens: Option<usize>,
    /// Class of each token, `[tokens]`.
    pub classes: Option<Vec<TokenClass>>,
    /// Cap of the logits; see [`SoftmaxForm`].
    pub soft_cap: Option<f32>,
    /// Logits of the attention sinks, `[query_heads]`.
    pub sink_logits: Option<Vec<f32>>,
}

impl TraceLayer {
    /// Form of the softmax of all query heads.
    pub fn form(&self) -> SoftmaxForm<'_> {
        SoftmaxForm { soft_cap: self.soft_cap, sink_logits: self.sink_logits.as_deref() }
    }

    /// Number of tokens in the cache when pipelines observe the prompt queries; all tokens without
    /// prompt queries.
    pub fn prompt_end(&self) -> usize {
        let tokens = self.keys.dim().1;
        let end = self.prompt.as_ref().and(self.prompt_tokens);
        end.map_or(tokens, |end| end.min(tokens))
    }

    /// Classes of a range of tokens, if they are known.
    ///
    /// # Panics
    /// If the layer has fewer tokens.
    pub fn classes_of(&self, tokens: Range<usize>) -> Option<&[TokenClass]> {
        Some(&self.classes.as_ref()?[tokens])
    }

    /// Number of tokens, from the first on, that are visible to a query.
    ///
    /// # Panics
    /// If the layer has fewer queries.
    pub fn visible_to(&self, query: usize) -> usize {
        self.visible.as_ref().map_or(self.keys.dim().1, |visible| visible[query])
    }

    /// Heads and their dimensions.
    pub fn shape(&self) -> Shape {
        let (query_heads, _, head_dim) = self.queries.dim();
        let (kv_heads, _, value_dim) = self.values.dim();
        Shape { query_heads, kv_heads, head_dim, value_dim }
    }
}
