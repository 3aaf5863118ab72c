//! The strict mode: a bound on the effect of tokens that the sample may have missed.
//!
//! Variances are raised as in the default mode.
//!
//! Let no weight in the residual exceed `B`. The `m + 1` tokens of largest influence are all missed
//! by `b` draws with probability `(1 − b/n_s)^(m + 1)` at most. So with probability `1 − δ/10` at
//! most `m = ⌊ln(10/δ) / −ln(1 − b/n_s)⌋` tokens have more influence than every drawn token. These
//! are the missed tokens. The draws are a sample of the others, and scaling it to `n_s` tokens
//! replaces each missed token by the mean of the drawn tokens. So missed tokens shift the target,
//! relative to itself, by at most `m x`, with
//!
//! - `x = (B (V + |o^|) + |mean w|) / |N|` for the output, `V` being the largest `|v|`;
//! - `x = (B V + |mean e v|) / |N|` for the numerator;
//! - `x = B / D` for the denominator.
//!
//! The radius is the sum of `m x` and the radius of the central limit theorem with `0.9 δ`.
//!
//! # Guarantee
//! (Theorem 3.) Asymptotic. With a bound `B`, nothing is assumed about undrawn tokens; without it,
//! the assumption `tail-seen` remains.

use vattention_core::{SampleStats, Target};

use crate::sample_means::SampleMeans;

/// Upper bound on the shift of the target by missed tokens, relative to the target, except with
/// probability `delta`. No weight in the residual may exceed `bound`.
pub(crate) fn shift(target: Target, stats: &SampleStats, bound: f64, delta: f64) -> f64 {
    most_missed(stats.b, stats.n_s, delta) * error_of_one_token(target, stats, bound)
}

/// Largest `m` with `(1 − b/n_s)^m ≥ delta`: `b` draws out of `n_s` miss all of `m + 1` given
/// tokens with a probability below `delta`.
fn most_missed(b: usize, n_s: usize, delta: f64) -> f64 {
    (delta.ln() / (-(b as f64) / n_s as f64).ln_1p()).floor()
}

/// Upper bound on the relative error due to one missed token.
fn error_of_one_token(target: Target, stats: &SampleStats, bound: f64) -> f64 {
    let means = SampleMeans::new(stats);
    match target {
        Target::Sdpa => (bound * (stats.max_norm_v + means.output) + means.mean_w) / stats.norm_n,
        Target::Numerator => (bound * stats.max_norm_v + means.mean_ev) / stats.norm_n,
        Target::Denominator => bound / stats.d,
    }
}
