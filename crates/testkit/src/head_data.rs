//! Queries, keys and values of one KV head.

use vattention_core::{Shape, Site, SoftmaxForm, Step, Tokens, step::StepThreads};

/// Number of elements of a value.
pub const VALUE_DIM: usize = 8;

/// Queries, keys and values of one KV head.
#[derive(Clone, Debug)]
pub struct HeadData {
    /// Number of query heads that share the KV head.
    pub group: usize,
    /// Number of elements of a query and of a key.
    pub head_dim: usize,
    /// `[group · head_dim]`, scaled.
    pub queries: Vec<f32>,
    /// `[tokens · head_dim]`
    pub keys: Vec<f32>,
    /// `[tokens · VALUE_DIM]`
    pub values: Vec<f32>,
    /// Cap of the logits.
    pub soft_cap: Option<f32>,
    /// Logits of the attention sinks, `[group]`.
    pub sink_logits: Option<Vec<f32>>,
}

impl HeadData {
    pub(crate) fn tokens(&self) -> usize {
        self.values.len() / VALUE_DIM
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape {
            query_heads: self.group,
            kv_heads: 1,
            head_dim: self.head_dim,
            value_dim: VALUE_DIM,
        }
    }

    /// Form of the softmax of the head.
    pub fn form(&self) -> SoftmaxForm<'_> {
        SoftmaxForm { soft_cap: self.soft_cap, sink_logits: self.sink_logits.as_deref() }
    }

    /// Step in which all tokens are visible.
    pub(crate) fn step<'a>(&'a self, site: &'a Site) -> Step<'a> {
        Step {
            site,
            queries: &self.queries,
            keys: Tokens::new(&self.keys, self.tokens(), self.head_dim),
            values: Tokens::new(&self.values, self.tokens(), VALUE_DIM),
            visible: self.tokens(),
            step: 0,
            form: self.form(),
            threads: StepThreads::default(),
        }
    }
}
