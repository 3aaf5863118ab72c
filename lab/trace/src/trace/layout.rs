//! Metadata, dimensions and numbers of the layers of a trace.

use std::ops::Range;

use ndarray::Array3;
use vattention_core::{Shape, Storage, TokenClass};

pub(super) const FORMAT: &str = "vattention-trace/1";

/// What a trace says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceInfo {
    /// What queries are multiplied by; `None` is `1 / √head_dim`.
    pub scale: Option<f32>,
    /// The model it was captured from.
    pub model: Option<String>,
    /// The text it was captured on.
    pub source: Option<String>,
    /// Of a trace that has a share of a model's layers: whose share, and what all shares depend on.
    pub share: Option<String>,
}

/// One layer's dimensions, known without reading its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Heads and their dimensions.
    pub shape: Shape,
    /// Tokens in the cache.
    pub tokens: usize,
    /// Queries.
    pub queries: usize,
    /// Prompt queries, 0 if there are none.
    pub prompt: usize,
    /// Whether each query has its own limit of what it sees.
    pub causal: bool,
    /// Whether it is known what each token is in the text.
    pub classes: bool,
    /// How keys and values are stored.
    pub storage: Storage,
}

/// One layer's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceLayer {
    /// `[query_heads, queries, head_dim]`, not scaled.
    pub queries: Array3<f32>,
    /// `[kv_heads, tokens, head_dim]`.
    pub keys: Array3<f32>,
    /// `[kv_heads, tokens, value_dim]`.
    pub values: Array3<f32>,
    /// Tokens that each query sees, `[queries]`; `None`: all.
    pub visible: Option<Vec<usize>>,
    /// Queries of the prompt's last tokens, `[query_heads, prompt, head_dim]`, not scaled.
    pub prompt: Option<Array3<f32>>,
    /// Tokens of the prompt, no fewer than its queries; those after them came later. `None`: all.
    pub prompt_tokens: Option<usize>,
    /// What each token is in the text, `[tokens]`.
    pub classes: Option<Vec<TokenClass>>,
}

impl TraceLayer {
    /// How many of the tokens are there when pipelines see the prompt queries: without any, all.
    pub fn prompt_end(&self) -> usize {
        let tokens = self.keys.dim().1;
        let end = self.prompt.as_ref().and(self.prompt_tokens);
        end.map_or(tokens, |end| end.min(tokens))
    }

    /// What some of the tokens are in the text, if that is known.
    ///
    /// # Panics
    /// If there are fewer tokens.
    pub fn classes_of(&self, tokens: Range<usize>) -> Option<&[TokenClass]> {
        Some(&self.classes.as_ref()?[tokens])
    }

    /// How many of the first tokens a query sees.
    ///
    /// # Panics
    /// If there are fewer queries.
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
