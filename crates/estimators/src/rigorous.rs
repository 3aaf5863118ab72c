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
//! divided evenly over the bounds used, and over the sizes at which a sample may be checked: the
//! first check, which the pipeline fixes, [`check_sizes`], and the limit if there is one.
//!
//! Cost: O(checks) beside the statistics.
//!
//! # Guarantee
//! (Theorem 4.) Finite-sample: `Pr(error of the target > ε) ≤ δ` for every input. Rounding of f32
//! sums on the `cpu` backend is not part of the theorem.

use vattention_core::{
    Kind, SampleStats, Size, Target,
    plugin::{Radius, check_sizes},
    promise::Assumptions,
};

use crate::formula::{
    bernstein_radius, empirical_bernstein, output_error, relative_error, upper_bound,
};
use crate::observed::Observed;

/// The number of sizes at which a sample may be checked: one of a given size once.
pub(crate) fn checks(size: Option<Size>, limit: Option<Size>, n_s: usize) -> usize {
    if size.is_some() {
        return 1;
    }
    1 + usize::from(limit.is_some()) + check_sizes(n_s).count()
}

/// The error bar that the sample proves, at one check of one row, whose bounds may fail with
/// probability `delta` together.
pub(crate) fn radius(target: Target, delta: f64, stats: &SampleStats) -> Radius {
    let prove = |bound: f64| Proof::new(target, delta, stats, bound).error(stats.b);
    let relative = stats.bound.map_or(f64::INFINITY, prove);
    Radius::new(relative, Kind::FiniteSample, Assumptions::NONE)
}

/// The bounds on one row's errors.
struct Proof<'a> {
    target: Target,
    stats: &'a SampleStats,
    observed: Observed,
    /// `B`.
    bound: f64,
    /// The failure probability of each bound.
    delta: f64,
}

impl<'a> Proof<'a> {
    fn new(target: Target, delta: f64, stats: &'a SampleStats, bound: f64) -> Self {
        let events = match target {
            Target::Sdpa | Target::Denominator => 3.0,
            Target::Numerator => 2.0,
        };
        Self { target, stats, observed: Observed::new(stats), bound, delta: delta / events }
    }

    /// Bound on the error of `b` tokens with the moments of those drawn.
    fn error(&self, b: usize) -> f64 {
        let Self { target, stats, observed, bound, .. } = self;
        match target {
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
        let variance = stats.var_e * (stats.drawn as f64 - 1.0) / stats.drawn as f64;
        let mean = empirical_bernstein(self.delta, b, stats.n_s, variance.sqrt(), self.bound);
        stats.n_s as f64 * mean
    }
}

#[cfg(test)]
mod tests;
