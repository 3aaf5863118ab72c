//! A table of the ways to divide delta between numerator and denominator, in place of a search.

use vattention_core::{Split, Target};

use crate::Combine;
use crate::formula::parts;

/// Bounds that hold with probability `1 − delta`, at one draw.
pub(crate) struct Quantiles<'a> {
    /// For a number: how many of its standard deviations, or of its range.
    pub(crate) scalar: &'a dyn Fn(f64) -> f64,
    /// For a vector: how many roots of its covariance's trace, or of the largest norm.
    pub(crate) vector: &'a dyn Fn(f64) -> f64,
}

/// The logarithms of the ratios in which a table divides delta. Where the best ratio is beyond them, or
/// between two, `√b` is some 1e-5 larger at the most.
const RATIOS: std::ops::RangeInclusive<i32> = -384..=384;
const STEP: f64 = 1.0 / 32.0;

/// The ways to bring a target's error within epsilon but for probability delta.
pub(crate) fn splits(
    target: Target,
    combine: Combine,
    (epsilon, delta): (f64, f64),
    quantiles: &Quantiles<'_>,
) -> Vec<Split> {
    let combination = combine.combination();
    // What one unit of each costs: `root` is linear in both.
    let (num, den) = match target {
        Target::Denominator => (0.0, 1.0),
        Target::Numerator => (1.0, 0.0),
        Target::Sdpa => (combination.root(epsilon, 1.0, 0.0), combination.root(epsilon, 0.0, 1.0)),
    };
    let split = |delta_num: f64, delta_den: f64| Split {
        cap: if num > 0.0 { ((quantiles.vector)(delta_num) * num).powi(2) } else { 0.0 },
        // Nothing is known of the spectrum: the cap is what counts.
        kappa: f64::INFINITY,
        z: if den > 0.0 { (quantiles.scalar)(delta_den) * den / epsilon } else { 0.0 },
    };
    match target {
        Target::Denominator | Target::Numerator => vec![split(delta, delta)],
        Target::Sdpa => RATIOS
            .map(|i| parts(delta, f64::from(i) * STEP))
            .map(|(num, den)| split(num, den))
            .collect(),
    }
}
