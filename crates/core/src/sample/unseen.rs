//! Tokens that a sample may have missed.

/// Upper bounds on the contribution of a set of tokens whose expected number of draws is 1.
///
/// The sample misses all tokens of such a set with probability `1/e`, and all tokens of a set with
/// λ expected draws with probability `e^−λ`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissBounds {
    /// Upper bound `x` on the set's part of `Σ e |v|`.
    pub numerator: f64,
    /// Upper bound `y` on the set's part of `Σ e`. Its part of `Σ e |v − o|` is at most
    /// `√(x² + |o|² y²)` for any `o`.
    pub denominator: f64,
    /// True if the bounds are proved for every token.
    pub proved: bool,
}
