//! Facts about the tokens that no selector picked.

/// Facts about the residual of a token list, the tokens that no selector picked, for one row.
#[derive(Clone, Copy, Debug)]
pub struct Residual<Bound = f32> {
    /// Number of tokens in the residual.
    pub n_s: usize,
    /// Number of tokens that the row may read.
    pub visible: usize,
    /// Number of query heads of the layer.
    pub query_heads: usize,
    /// Largest norm of a visible value.
    pub max_norm_v: f64,
    /// Upper bound on the logits of the residual (or its exponential), if a selector proved one.
    pub bound: Option<Bound>,
}
