//! Quantiles of the normal and chi-square distributions, and of the squared length of a Gaussian
//! vector whose covariance is only partly known.
//!
//! Each takes microseconds or more and depends on delta and a rank only, so estimators tabulate
//! them.

use std::f64::consts::SQRT_2;

use statrs::function::{erf::erfc_inv, gamma::gamma_ur};

/// `Φ⁻¹(1 − delta/2)`: a standard normal leaves `±z_two` with probability delta.
pub fn z_two(delta: f64) -> f64 {
    SQRT_2 * erfc_inv(delta)
}

/// `Φ⁻¹(1 − delta)`: a standard normal exceeds `z_one` with probability delta.
pub fn z_one(delta: f64) -> f64 {
    SQRT_2 * erfc_inv(2.0 * delta)
}

/// `√(2 ln(2/delta))`: replaces [`z_two`] if an error is only known to be sub-Gaussian.
pub fn sub_gaussian(delta: f64) -> f64 {
    (2.0 * (2.0 / delta).ln()).sqrt()
}

/// Value that a chi-square variable with `dof` degrees of freedom, possibly fractional, exceeds
/// with probability delta.
///
/// The solver is Newton's method in the logarithm, within a bracket.
pub fn chi2_isf(delta: f64, dof: f64) -> f64 {
    if delta <= f64::MIN_POSITIVE {
        return f64::INFINITY;
    }
    let half = dof / 2.0;
    let excess = |log_x: f64| gamma_ur(half, log_x.exp() / 2.0) - delta;
    let (mut low, mut high) = (-700.0, (20.0 * (dof + 100.0)).ln());
    let mut log_x = wilson_hilferty(delta, dof).max(1e-300).ln();
    for _ in 0..100 {
        let error = excess(log_x);
        if error > 0.0 {
            low = log_x;
        } else {
            high = log_x;
        }
        let x = log_x.exp();
        let log_density = half * (x / 2.0).ln() - x / 2.0 - statrs::function::gamma::ln_gamma(half);
        let newton = log_x + error / log_density.exp();
        let next = if newton > low && newton < high { newton } else { f64::midpoint(low, high) };
        if (next - log_x).abs() < 1e-15 * log_x.abs().max(1.0) {
            return next.exp();
        }
        log_x = next;
    }
    log_x.exp()
}

/// Cube-root approximation of a chi-square quantile (Wilson, Hilferty 1931).
fn wilson_hilferty(delta: f64, dof: f64) -> f64 {
    let c = 2.0 / (9.0 * dof);
    dof * (1.0 - c + z_one(delta) * c.sqrt()).max(0.0).powi(3)
}

/// Largest delta for which a one-dimensional Gaussian is the worst case (Székely, Bakirov 2003).
pub(super) const DELTA_1: f64 = 0.215_154_885_276_280_02;

/// Largest rank that is evaluated: larger ones change `c2` by less than 1e-3 for delta below 0.5.
const MAX_RANK: usize = 1024;

/// Smallest multiplier of the covariance's trace that bounds a Gaussian vector's squared length
/// with probability `1 − delta`, for every covariance of rank at most `rank` (eq. 5).
///
/// It equals `max_{1 ≤ n ≤ rank} χ²_n(delta) / n`.
///
/// Székely, Bakirov (2003), "Extremal probabilities for Gaussian quadratic forms", PTRF 126.
pub fn c2(delta: f64, rank: usize) -> f64 {
    if delta < DELTA_1 {
        return z_two(delta).powi(2);
    }
    let (mut best, mut falling) = (f64::NEG_INFINITY, 0);
    for n in 1..=rank.clamp(1, MAX_RANK) {
        let flat = chi2_isf(delta, n as f64) / n as f64;
        falling = if flat < best { falling + 1 } else { 0 };
        best = best.max(flat);
        if falling == 3 {
            break; // The sequence has one peak.
        }
    }
    best
}

/// Largest `1 − delta` quantile of the standardised forms `Σ l_i (g_i² − 1)`, `|l| = 1`, over
/// spectra `l`: the maximum over flat spectra of up to 400 elements and the Gaussian limit. It is
/// verified numerically, not proved, that no other spectrum has a larger quantile.
pub fn kappa(delta: f64) -> f64 {
    let flat = |n: usize| (n as f64).sqrt() * (chi2_isf(delta, n as f64) / n as f64 - 1.0);
    (1..=400).map(flat).fold(SQRT_2 * z_one(delta), f64::max)
}

/// Multiplier of the trace for a covariance of effective rank `nu`: at most [`c2`], and smaller if
/// the covariance spreads over many directions (eq. 6).
pub fn q_rob(delta: f64, nu: f64, rank: usize) -> f64 {
    c2(delta, rank).min(1.0 + kappa(delta) / nu.max(1.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chi-square with 2 degrees of freedom is exponential.
    #[test]
    fn known_quantiles() {
        for delta in [1e-12, 1e-6, 0.01, 0.3, 0.5, 0.9, 0.99] {
            let exact = -2.0 * f64::ln(delta);
            assert!((chi2_isf(delta, 2.0) / exact - 1.0).abs() < 1e-12, "{delta}");
            let square = z_two(delta).powi(2);
            assert!((chi2_isf(delta, 1.0) / square - 1.0).abs() < 1e-9, "{delta}");
        }
        assert!((z_one(0.025) - 1.959_963_984_540_054).abs() < 1e-12);
    }

    #[test]
    fn c2_is_the_normal_constant_up_to_its_limit_and_larger_above() {
        for delta in [0.01, 0.1, 0.2, 0.215] {
            assert_eq!(c2(delta, 128), z_two(delta).powi(2));
        }
        for delta in [0.2152, 0.25, 0.3, 0.4] {
            assert!(c2(delta, 128) > z_two(delta).powi(2));
            assert!(c2(delta, 128) >= c2(delta, 4));
        }
        assert!((c2(0.25, 128) + 0.25_f64.ln()).abs() < 1e-12, "the maximum is at n = 2");
    }

    #[test]
    fn stopping_after_the_peak_does_not_miss_the_maximum() {
        for delta in [0.216, 0.25, 0.28, 0.31, 0.4, 0.45, 0.49, 0.5, 0.7] {
            let all = (1..=200).map(|n| chi2_isf(delta, f64::from(n)) / f64::from(n));
            assert_eq!(c2(delta, 200), all.fold(0.0, f64::max), "{delta}");
        }
    }

    #[test]
    fn q_rob_falls_with_the_effective_rank() {
        for delta in [0.01, 0.05, 0.2, 0.4] {
            let q: Vec<f64> = [1.0, 2.0, 8.0, 60.0].map(|nu| q_rob(delta, nu, 128)).into();
            assert!(q.is_sorted_by(|a, b| a >= b), "{delta}: {q:?}");
            assert!(q[0] <= c2(delta, 128));
        }
    }
}
