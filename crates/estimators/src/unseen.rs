//! What a sample may have missed, where the sampler knows.
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

use vattention_core::{Assumption, Assumptions, Kind, Radius, SampleStats, Target, Unseen};

use crate::Mode;
use crate::goal::Goal;

/// The part of delta for missing tokens that would shift the target further than was counted.
pub(crate) const UNSEEN_SHARE: f64 = 0.1;

/// How far the sample may be off, given how far it may be by the central limit theorem.
pub(crate) fn radius(
    mode: Mode,
    goal: &Goal,
    stats: &SampleStats,
    unseen: &Unseen,
    asymptotic: impl Fn(&SampleStats, &Goal) -> f64,
) -> Radius {
    let seen = asymptotic(stats, &Goal { delta: (1.0 - UNSEEN_SHARE) * goal.delta, ..*goal });
    let shift = shift(goal, stats, unseen);
    let relative = if mode == Mode::Strict { seen + shift } else { seen.max(shift) };
    let assumes = Assumptions::of(Assumption::Normal) | Assumptions::of(Assumption::Moments);
    let tail = Assumptions::of(Assumption::TailSeen);
    let assumes = if unseen.proved { assumes } else { assumes | tail };
    Radius::new(relative, Kind::Asymptotic, assumes)
}

/// By how much tokens that are missed with probability `δ/10` shift the target, relative to it.
fn shift(goal: &Goal, stats: &SampleStats, unseen: &Unseen) -> f64 {
    let draws = -(UNSEEN_SHARE * goal.delta).ln();
    let norm_n = goal.norm_n(stats.norm_n_debiased, stats);
    draws
        * match goal.target {
            Target::Sdpa => unseen.output / norm_n,
            Target::Numerator => unseen.numerator / norm_n,
            Target::Denominator => unseen.denominator / stats.d,
        }
}
