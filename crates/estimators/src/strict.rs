//! The strict mode: what the sample may have missed is counted.
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
//! The budget is the least `b` that satisfies the central limit theorem with `ε − m x` and `0.9 δ`.
//!
//! # Guarantee
//! (Theorem 3.) Asymptotic. With a bound nothing is assumed of the tail, else everything is.

use vattention_core::{Assumption, Assumptions, Budget, Kind, SampleStats, Target};

use crate::formula::fewest_draws;
use crate::goal::Goal;
use crate::observed::Observed;

/// The part of delta for having missed more than was counted.
const UNSEEN_SHARE: f64 = 0.1;

/// The budget, given what the central limit theorem asks for of statistics whose variances are raised.
pub(crate) fn budget(
    goal: &Goal,
    stats: &SampleStats,
    asymptotic: impl Fn(&SampleStats, &Goal) -> usize,
) -> Budget {
    let (tokens, assumes) = match stats.bound {
        None => (asymptotic(stats, goal), Assumptions::ALL),
        Some(bound) => (
            beside_the_unseen(goal, stats, bound, asymptotic),
            Assumptions::of(Assumption::Normal) | Assumptions::of(Assumption::Moments),
        ),
    };
    Budget { tokens, kind: Kind::Asymptotic, assumes }
}

/// The fewest tokens whose error, and what they may have missed, come to epsilon together.
fn beside_the_unseen(
    goal: &Goal,
    stats: &SampleStats,
    bound: f64,
    asymptotic: impl Fn(&SampleStats, &Goal) -> usize,
) -> usize {
    let delta_unseen = UNSEEN_SHARE * goal.delta;
    let one = error_of_one(goal, stats, bound);
    let lacking = |b: usize| {
        let epsilon = goal.epsilon - one * most_unseen(b, stats.n_s, delta_unseen);
        if epsilon > 0.0 {
            let left = Goal { epsilon, delta: goal.delta - delta_unseen, ..*goal };
            asymptotic(stats, &left) as f64 - b as f64
        } else {
            f64::INFINITY
        }
    };
    fewest_draws(stats.n_s, 0.0, lacking)
}

/// How many tokens `b` draws out of `n_s` may all have missed, but for probability delta.
fn most_unseen(b: usize, n_s: usize, delta: f64) -> f64 {
    (delta.ln() / (-(b as f64) / n_s as f64).ln_1p()).floor()
}

/// The relative error that one unseen token makes at the most.
fn error_of_one(goal: &Goal, stats: &SampleStats, bound: f64) -> f64 {
    let observed = Observed::new(stats);
    let norm_n = goal.norm_n(stats.norm_n_debiased, stats);
    match goal.target {
        Target::Sdpa => (bound * (stats.max_norm_v + observed.output) + observed.mean_w) / norm_n,
        Target::Numerator => (bound * stats.max_norm_v + observed.mean_ev) / norm_n,
        Target::Denominator => bound / stats.d,
    }
}
