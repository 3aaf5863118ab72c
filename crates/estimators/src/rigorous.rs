//! The rigorous mode: a bound for every finite sample, from what is proved and observed alone.
//!
//! No residual weight exceeds `B`, no value is longer than `V`, and `c`, the certain tokens' own
//! output, was known before the draw. Of `u = e (v − c)`, `|u| ≤ K = B (V + |c|)`:
//!
//! | quantity         | bound                                                                     |
//! |------------------|---------------------------------------------------------------------------|
//! | `mean e²` etc.   | [`upper_bound`] from the sample's                                         |
//! | `|U^ − U| ≤ r_U` | `(n_s/b)` [`bernstein_radius`] of `min(b, n_s − b)` draws                 |
//! | `|D^ − D| ≤ r_D` | [`empirical_bernstein`]; if `D` is the target, the same as of `U` too     |
//! | `|o^ − o|`       | [`output_error`]`(r_U, r_D, |o^ − c|, D^)`                                |
//!
//! The error is within epsilon if its bound is at most `ε/(1 + ε)` of what was estimated. delta is
//! divided evenly over the bounds used, and over the sizes at which a sample may be looked at: the
//! first look, which the pipeline fixes, [`look_sizes`], and the limit if there is one.
//!
//! Cost: O(looks) beside the statistics.
//!
//! # Guarantee
//! (Theorem 4.) Finite-sample: `Pr(error of the target > ε) ≤ δ` for every input. Rounding of f32
//! sums on the `cpu` backend is not part of the theorem.

use vattention_core::{Assumptions, Budget, Kind, Radius, SampleStats, Target};

use crate::formula::{
    bernstein_radius, empirical_bernstein, look_sizes, output_error, relative_error, upper_bound,
};
use crate::goal::{Goal, Looks};
use crate::observed::Observed;

/// What the sample proves.
pub(crate) fn radius(goal: &Goal, stats: &SampleStats) -> Radius {
    let prove = |bound: f64| Proof::new(goal, stats, bound).error(stats.b);
    let relative = stats.bound.map_or(f64::INFINITY, prove);
    Radius::new(relative, Kind::FiniteSample, Assumptions::NONE)
}

/// The sample's size if it is enough, otherwise the size at which the next look is due.
pub(crate) fn budget(goal: &Goal, stats: &SampleStats) -> Budget {
    let tokens = match stats.bound {
        Some(bound) => Proof::new(goal, stats, bound).fewest(),
        None => stats.n_s,
    };
    Budget { tokens, kind: Kind::FiniteSample, assumes: Assumptions::NONE }
}

/// The bounds on one row's errors.
struct Proof<'a> {
    goal: &'a Goal,
    stats: &'a SampleStats,
    observed: Observed,
    /// `B`.
    bound: f64,
    /// Of each bound at each look.
    delta: f64,
}

impl<'a> Proof<'a> {
    fn new(goal: &'a Goal, stats: &'a SampleStats, bound: f64) -> Self {
        let events = match goal.target {
            Target::Sdpa | Target::Denominator => 3,
            Target::Numerator => 2,
        };
        let looks = match goal.looks {
            Looks::One => 1,
            Looks::List => 1 + look_sizes(stats.n_s).count(),
            Looks::ListAndLimit => 2 + look_sizes(stats.n_s).count(),
        };
        let delta = goal.delta / (events * looks) as f64;
        Self { goal, stats, observed: Observed::new(stats), bound, delta }
    }

    /// The size of the sample if that is enough, else the first of the sizes looked at that would be
    /// with the moments seen so far. The sampler grows a sample by an eighth at least, so no nearer size
    /// would be looked at.
    fn fewest(&self) -> usize {
        let (b, n_s) = (self.stats.b, self.stats.n_s);
        if self.is_enough(b) {
            return b;
        }
        look_sizes(n_s).find(|&size| size >= b + b / 8 && self.is_enough(size)).unwrap_or(n_s)
    }

    /// Whether `b` tokens, with the moments of those drawn, bound the error by epsilon.
    fn is_enough(&self, b: usize) -> bool {
        self.error(b) <= self.goal.epsilon
    }

    /// What `b` tokens, with the moments of those drawn, bound the error by.
    fn error(&self, b: usize) -> f64 {
        let Self { goal, stats, observed, bound, .. } = self;
        match goal.target {
            Target::Denominator => {
                let radius = self.radius_d(b).min(self.radius(b, observed.rms_e, *bound));
                relative_error(radius, stats.d)
            }
            Target::Numerator => {
                let radius = self.radius(b, observed.rms_ev, bound * stats.max_norm_v);
                relative_error(radius, stats.norm_n)
            }
            Target::Sdpa => {
                let radius_d = self.radius_d(b);
                let error = output_error(self.radius_u(b), radius_d, stats.drift, stats.d);
                relative_error(error, observed.output)
            }
        }
    }

    /// `r_U`. The sample's `rms u ≤ rms w + |o^ − c| rms e`, and `|c| ≤ min(V, |o^| + |o^ − c|)`.
    fn radius_u(&self, b: usize) -> f64 {
        let Self { stats, observed, .. } = self;
        let centre = stats.max_norm_v.min(observed.output + stats.drift);
        let rms_u = observed.rms_w + stats.drift * observed.rms_e;
        self.radius(b, rms_u, self.bound * (stats.max_norm_v + centre))
    }

    /// The radius of a sum of vectors, none longer than `largest`, from the sample's root mean square.
    fn radius(&self, b: usize, rms: f64, largest: f64) -> f64 {
        let (draws, n_s) = (b as f64, self.stats.n_s as f64);
        let mean_square = self.mean_square(b, rms, largest);
        let fewer = draws.min(n_s - draws);
        let centred = largest + mean_square.sqrt();
        n_s / draws * bernstein_radius(self.delta, fewer * mean_square, centred)
    }

    /// At least the mean square of all, from the sample's root mean square.
    fn mean_square(&self, b: usize, rms: f64, largest: f64) -> f64 {
        let draws = b as f64;
        upper_bound(self.delta, draws * rms * rms, largest * largest) / draws
    }

    /// `r_D`.
    fn radius_d(&self, b: usize) -> f64 {
        let Self { stats, .. } = self;
        let variance = stats.var_e * (stats.b as f64 - 1.0) / stats.b as f64;
        let mean = empirical_bernstein(self.delta, b, stats.n_s, variance.sqrt(), self.bound);
        stats.n_s as f64 * mean
    }
}

#[cfg(test)]
mod tests;
