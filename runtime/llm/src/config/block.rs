//! Description of a model's layers: everything in which families differ besides dimensions.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// Structure that all layers of a model share. The default is that of Llama.
///
/// A layer adds the outputs of attention and of the feed-forward network, times `residual_scale`,
/// to its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// True if the inputs of attention and of the feed-forward network are normalised.
    pub input_norms: bool,
    /// True if the outputs of attention and of the feed-forward network are normalised.
    pub output_norms: bool,
    /// Norm of queries and keys, before their rotary embedding.
    pub head_norm: HeadNorm,
    /// Activation of the feed-forward network's gate.
    pub activation: GateActivation,
    /// Softmax scale, by which queries are multiplied; `None` means `1 / √head_dim`.
    pub scale: Option<f32>,
    /// Soft cap of the attention logits: a logit becomes `cap · tanh(logit / cap)`.
    pub attention_cap: Option<f32>,
    /// Soft cap of the logits of tokens.
    pub logits_cap: Option<f32>,
    /// True if each query head has a sink: a learned logit that adds to the denominator of the
    /// softmax, and has no value.
    pub sinks: bool,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Factor of the outputs that a layer adds to its input.
    pub residual_scale: f32,
    /// Factor of the logits of tokens, before the soft cap.
    pub logits_scale: f32,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            input_norms: true,
            output_norms: false,
            head_norm: HeadNorm::None,
            activation: GateActivation::Silu,
            scale: None,
            attention_cap: None,
            logits_cap: None,
            sinks: false,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logits_scale: 1.0,
        }
    }
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorm {
    /// No norm.
    None,
    /// One norm for each head, with weights that the heads share, `[head_dim]`.
    PerHead,
    /// One norm over all heads of a token, with weights `[heads · head_dim]`.
    AllHeads,
    /// One norm for each head without weights, in layers with a rotary embedding. It may follow or
    /// precede the rotation, which keeps the lengths of heads.
    Unweighted,
}

/// Activation `a` of a gated feed-forward network, `down(a(gate(x)) · up(x))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateActivation {
    /// `g / (1 + e^-g)`
    Silu,
    /// GELU, with the approximation by the hyperbolic tangent.
    GeluTanh,
    /// `g / (1 + e^(-alpha g))` of a gate of at most `limit`. The factor `up(x)` is clamped to
    /// `-limit ..= limit`, and 1 is added to it.
    ClampedSwiglu {
        /// Factor of the gate in the exponent.
        alpha: f32,
        /// Largest gate, and largest magnitude of `up(x)`.
        limit: f32,
    },
}

/// Attention of one layer, as far as layers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerForm {
    /// Last tokens that a query attends to; `None` means all.
    pub window: Option<LayerWindow>,
    /// Index of the layer's rotary embedding in [`Config::ropes`](crate::Config::ropes); `None` if
    /// it has none.
    pub rope: Option<usize>,
    /// True if queries grow by [`Config::query_scaling`](crate::Config::query_scaling).
    pub scales_queries: bool,
}

/// Last tokens that a query of a layer attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LayerWindow {
    /// Largest number of tokens, the query's own token included.
    pub size: usize,
    /// True if windows begin at multiples of `size`: the sequence is cut into chunks, and tokens
    /// attend within their chunk.
    pub aligned: bool,
}

impl LayerWindow {
    /// First token that the query of a token attends to.
    pub fn first(self, token: usize) -> usize {
        if self.aligned {
            token / self.size * self.size
        } else {
            (token + 1).saturating_sub(self.size)
        }
    }
}

impl fmt::Display for LayerWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.aligned { "chunk" } else { "window" };
        write!(f, "{kind} {}", self.size)
    }
}
