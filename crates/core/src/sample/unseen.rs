//! Tokens that a sample may have missed.

/// Upper bounds on the contribution of a set of tokens whose expected number of draws is 1.
///
/// All of them are missed with probability `1/e`; tokens with λ expected draws with `e^−λ`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unseen {
    /// Bound `x` on their part of `Σ e |v|`.
    pub numerator: f64,
    /// Bound `y` on their part of `Σ e`. Their part of `Σ e |v − o|`, for any `o`, is at most
    /// `√(x² + |o|² y²)`.
    pub denominator: f64,
    /// Whether the bounds are proved for every token.
    pub proved: bool,
}
