//! Effect of tokens that a sample may have missed, where the sampler bounds it.
//!
//! A set of tokens whose expected number of draws is λ is missed as a whole with probability `e^−λ`
//! at most. The sampling design bounds the contribution of a set whose expected number of draws is
//! 1 ([`MissBounds`]). So except with probability `δ/10`, missed tokens shift the target by at most
//! `λ = ln(10/δ)` times this bound, and `0.9 δ` remains for the central limit theorem. In the
//! default mode each of the two errors is within epsilon; in the strict mode their sum is.
//!
//! # Guarantee
//! (docs/guarantees.md, theorem 6.) Asymptotic. Nothing is assumed about undrawn tokens if the
//! design's bound is proved.

use vattention_core::{SampleStats, Target, sample::MissBounds};

/// Upper bound on the shift of the target by missed tokens, relative to the target, except with
/// probability `delta`.
pub(crate) fn shift(target: Target, stats: &SampleStats, unseen: &MissBounds, delta: f64) -> f64 {
    -delta.ln()
        * match target {
            Target::Sdpa => (unseen.numerator / stats.norm_n).hypot(unseen.denominator / stats.d),
            Target::Numerator => unseen.numerator / stats.norm_n,
            Target::Denominator => unseen.denominator / stats.d,
        }
}
