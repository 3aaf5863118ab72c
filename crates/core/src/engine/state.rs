//! Parts of a sequence that can be stored, and from which another sequence continues.

use ndarray::Array3;

/// Stored keys and values of a range of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyValueRows {
    /// Keys, `[kv_heads, tokens, head_dim]`.
    pub keys: Array3<f32>,
    /// Values, `[kv_heads, tokens, value_dim]`.
    pub values: Array3<f32>,
}

/// State of one layer of a sequence besides its tokens, keys and values.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionState {
    /// Number of the next step.
    pub step: u32,
    /// Last queries of each prompt, in order.
    pub prompts: Vec<ObservedPrompt>,
    /// First sample size that each query head has learned, `[query_heads]`, in an encoding that
    /// only [`Pipeline`](crate::Pipeline) interprets.
    pub first_sizes: Vec<u64>,
}

/// Point of a sequence to which it can [return](crate::Attention::rewind), after one of its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequencePoint {
    /// Number of tokens.
    pub tokens: usize,
    /// Number of the next step.
    pub step: u32,
    /// First sample sizes, as in [`AttentionState`].
    pub first_sizes: Vec<u64>,
}

/// Last queries of a prompt, as [`observe`](crate::Attention::observe) received them.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedPrompt {
    /// Number of tokens of the sequence at the end of the prompt.
    pub tokens: usize,
    /// Queries, `[query_heads, queries, head_dim]`.
    pub queries: Array3<f32>,
}
