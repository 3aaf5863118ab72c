//! The tokens outside a token list.

/// Facts about the tokens outside a token list, beside the sample.
#[derive(Clone, Copy, Debug)]
pub struct Residual<Bound = f32> {
    /// Number of these tokens.
    pub n_s: usize,
    /// Tokens that the row may read.
    pub visible: usize,
    /// Query heads of the layer.
    pub query_heads: usize,
    /// The largest norm of a visible value.
    pub max_norm_v: f64,
    /// Upper bound on their logits (or its exponential), if an exact selector proved one.
    pub bound: Option<Bound>,
}
