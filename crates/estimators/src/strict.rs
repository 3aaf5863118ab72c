//! The strict mode: tokens that the sample may have missed are counted.
//!
//! Variances are raised as in the default mode.
//!
//! If no residual weight exceeds `B`: the `m + 1` tokens of largest influence are all missed by `b`
//! draws with probability `(1 − b/n_s)^(m + 1)` at most. So but for `δ/10`, at most
//! `m = ⌊ln(10/δ) / −ln(1 − b/n_s)⌋` tokens have more influence than every drawn one. The sample is
//! one of the others, and takes each missing one for their mean: an error of at most `m` times
//!
//! `x = (B (V + |o^|) + |mean w|) / |N|`  of the output, `V` being the largest `|v|`;
//! `(B V + |mean e v|) / |N|`  of the numerator;  `B / D`  of the denominator.
//!
//! The radius is `m x` beside that of the central limit theorem with `0.9 δ`.
//!
//! # Guarantee
//! (Theorem 3.) Asymptotic. With a bound nothing is assumed of the tail, else everything is.

use vattention_core::{SampleStats, Target};

use crate::observed::Observed;

/// Upper bound, but for probability delta, on the shift of the target by missed tokens, relative to the
/// target; no residual weight exceeds `bound`.
pub(crate) fn shift(target: Target, stats: &SampleStats, bound: f64, delta: f64) -> f64 {
    most_unseen(stats.b, stats.n_s, delta) * error_of_one(target, stats, bound)
}

/// Number of tokens that `b` draws out of `n_s` may all have missed, but for probability delta.
fn most_unseen(b: usize, n_s: usize, delta: f64) -> f64 {
    (delta.ln() / (-(b as f64) / n_s as f64).ln_1p()).floor()
}

/// The relative error that one unseen token makes at the most.
fn error_of_one(target: Target, stats: &SampleStats, bound: f64) -> f64 {
    let observed = Observed::new(stats);
    match target {
        Target::Sdpa => {
            (bound * (stats.max_norm_v + observed.output) + observed.mean_w) / stats.norm_n
        }
        Target::Numerator => (bound * stats.max_norm_v + observed.mean_ev) / stats.norm_n,
        Target::Denominator => bound / stats.d,
    }
}
