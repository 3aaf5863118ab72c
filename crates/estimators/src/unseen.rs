//! Bounds on the tokens that a sample may have missed, where the sampler gives them.
//!
//! Tokens of which λ draws are expected together are all missed with probability `e^−λ`, and the design
//! says what one draw's worth of them adds to a sum at the most ([`Unseen`]). So what tokens that are
//! missed with probability `δ/10` shift the target by is λ = ln(10/δ) times that, and the central limit
//! theorem is left `0.9 δ`. In the default mode each of the two is within epsilon, in the strict mode both
//! together are.
//!
//! # Guarantee
//! (docs/guarantees.md, theorem 6.) Asymptotic. Of the tail nothing is assumed, if the design proved what
//! it says.

use vattention_core::{SampleStats, Target, sample::Unseen};

/// Shift of the target, relative to it, by tokens that are missed with probability delta.
pub(crate) fn shift(target: Target, stats: &SampleStats, unseen: &Unseen, delta: f64) -> f64 {
    -delta.ln()
        * match target {
            Target::Sdpa => (unseen.numerator / stats.norm_n).hypot(unseen.denominator / stats.d),
            Target::Numerator => unseen.numerator / stats.norm_n,
            Target::Denominator => unseen.denominator / stats.d,
        }
}
