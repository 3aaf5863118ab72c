//! The rigorous mode: a bound for every finite sample, from proved bounds and the sample alone.
//!
//! No weight in the residual exceeds `B`, no value is longer than `V`, and `c`, the output of the
//! tokens that are always read, is fixed before the draw. So `u = e (v − c)` satisfies
//! `|u| ≤ K = B (V + |c|)`. The bounds are
//!
//! | quantity         | bound                                                                     |
//! |------------------|---------------------------------------------------------------------------|
//! | mean squares     | [`upper_bound`] from the mean square over the sample                      |
//! | `|U^ − U| ≤ r_U` | `n_s/b` times [`bernstein_radius`] of `min(b, n_s − b)` draws             |
//! | `|D^ − D| ≤ r_D` | [`empirical_bernstein`]; if `D` is the target, also the bound as for `U`  |
//! | `|o^ − o|`       | [`output_error`]`(r_U, r_D, |o^ − c|, D^)`                                |
//!
//! The error is within epsilon if its bound is at most `ε/(1 + ε)` of the estimate's length. delta
//! is divided evenly among the bounds used, and among the sizes at which a sample may be checked:
//! the first size, which the pipeline fixes, [`check_sizes`], and the limit if there is one.
//!
//! Cost: O(checks) in addition to the statistics.
//!
//! # Guarantee
//! (Theorem 4.) Finite-sample: `Pr(error of the target > ε) ≤ δ` for every input. Rounding of f32
//! sums on the backends `cpu` and `cuda` is not part of the theorem.

use vattention_core::{
    Kind, SampleStats, Size, Target,
    plugin::{Radius, check_sizes},
    promise::Assumptions,
};

use crate::formula::{
    bernstein_radius, empirical_bernstein, output_error, relative_error, upper_bound,
};
use crate::sample_means::SampleMeans;

/// Counts the sizes at which a sample may be checked. A sample of a given `size` is checked once.
pub(crate) fn count_checks(size: Option<Size>, limit: Option<Size>, n_s: usize) -> usize {
    if size.is_some() {
        return 1;
    }
    1 + usize::from(limit.is_some()) + check_sizes(n_s).count()
}

/// Error bar that a row's sample proves at one check, except with probability `delta`.
pub(crate) fn radius(target: Target, delta: f64, stats: &SampleStats) -> Radius {
    let prove = |bound: f64| Proof::new(target, delta, stats, bound).error(stats.b);
    let relative = stats.bound.map_or(f64::INFINITY, prove);
    Radius::new(relative, Kind::FiniteSample, Assumptions::NONE)
}

/// Bounds on the errors of one row.
struct Proof<'a> {
    target: Target,
    stats: &'a SampleStats,
    means: SampleMeans,
    /// `B`.
    bound: f64,
    /// Failure probability of each bound.
    delta: f64,
}

impl<'a> Proof<'a> {
    fn new(target: Target, delta: f64, stats: &'a SampleStats, bound: f64) -> Self {
        let events = match target {
            Target::Sdpa | Target::Denominator => 3.0,
            Target::Numerator => 2.0,
        };
        Self { target, stats, means: SampleMeans::new(stats), bound, delta: delta / events }
    }

    /// Bound on the relative error of a sample of `b` tokens with the moments of the drawn tokens.
    fn error(&self, b: usize) -> f64 {
        let Self { target, stats, means, bound, .. } = self;
        match target {
            Target::Denominator => {
                let radius = self.radius_d(b).min(self.radius(b, means.rms_e, *bound));
                relative_error(radius, stats.d)
            }
            Target::Numerator => {
                let radius = self.radius(b, means.rms_ev, bound * stats.max_norm_v);
                relative_error(radius, stats.norm_n)
            }
            Target::Sdpa => {
                let radius_d = self.radius_d(b);
                let error = output_error(self.radius_u(b), radius_d, stats.drift, stats.d);
                relative_error(error, means.output)
            }
        }
    }

    /// `r_U`, from `rms u ≤ rms w + |o^ − c| rms e` over the sample, and
    /// `|c| ≤ min(V, |o^| + |o^ − c|)`.
    fn radius_u(&self, b: usize) -> f64 {
        let Self { stats, means, .. } = self;
        let centre = stats.max_norm_v.min(means.output + stats.drift);
        let rms_u = means.rms_w + stats.drift * means.rms_e;
        self.radius(b, rms_u, self.bound * (stats.max_norm_v + centre))
    }

    /// Radius of an estimated sum of vectors no longer than `largest`, from the root mean square
    /// over the sample.
    fn radius(&self, b: usize, rms: f64, largest: f64) -> f64 {
        let (draws, n_s) = (b as f64, self.stats.n_s as f64);
        let mean_square = self.mean_square(b, rms, largest);
        let fewer = draws.min(n_s - draws);
        let centred = largest + mean_square.sqrt();
        n_s / draws * bernstein_radius(self.delta, fewer * mean_square, centred)
    }

    /// Upper bound on the mean square over the residual, from the root mean square over the sample.
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
