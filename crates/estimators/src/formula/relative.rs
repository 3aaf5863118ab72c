//! Conversion of errors relative to an estimate to errors relative to the true value.
//!
//! A radius `R` bounds `|o^ − o| / |o^|`, except with probability δ. An error bar `B` bounds
//! `|o^ − o| / |o|`, except with probability δ.

use std::cell::Cell;

use super::z_two;

/// Error bar of a radius: `B = R + R² min(c R, 1 + R) / (1 − R²)`, `c = max(3/2, z² − 3/4) / 2`,
/// and infinite for `R ≥ 1`, where the true value may be 0 (eq. 8). The bar rises with the radius.
///
/// The bar is valid for Gaussian errors whose length has the `1 − δ` quantile `|o^| R`. Estimates
/// longer than `o` err by more than `B |o|` more often than shorter ones, and `c` makes the sum of
/// both probabilities at most δ. This is verified numerically (for scalars by an integral, without
/// sampling), not proved.
pub fn bar_of_radius(radius: f64, delta: f64) -> f64 {
    bar(radius, curvature(delta))
}

/// Largest radius whose [bar](bar_of_radius) is at most `epsilon`, found by bisection.
pub fn radius_of_bar(epsilon: f64, delta: f64) -> f64 {
    let curvature = curvature(delta);
    let (mut low, mut high) = (0.0, 1.0);
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            return low;
        }
        if bar(middle, curvature) <= epsilon { low = middle } else { high = middle }
    }
}

/// `R / (1 − R)`, infinite for `R ≥ 1`: the error bar for any distribution of errors, since
/// `|o| ≥ |o^| − |o^ − o|`.
pub fn sure_bar_of_radius(radius: f64) -> f64 {
    if radius < 1.0 { radius / (1.0 - radius) } else { infinite_unless_nan(radius) }
}

/// `ε / (1 + ε)`: the inverse of [`sure_bar_of_radius`].
pub fn radius_of_sure_bar(epsilon: f64) -> f64 {
    1.0 / (1.0 + 1.0 / epsilon)
}

/// Curvature `c`. The last result is stored, because a sample is checked with one delta.
fn curvature(delta: f64) -> f64 {
    thread_local! {
        static LAST: Cell<[f64; 2]> = const { Cell::new([f64::NAN; 2]) };
    }
    let [last, curvature] = LAST.get();
    if delta == last {
        return curvature;
    }
    let curvature = (z_two(delta).powi(2) - 0.75).max(1.5) / 2.0;
    LAST.set([delta, curvature]);
    curvature
}

fn bar(radius: f64, curvature: f64) -> f64 {
    if radius < 1.0 {
        let square = radius * radius;
        radius + square * (curvature * radius).min(1.0 + radius) / (1.0 - square)
    } else {
        infinite_unless_nan(radius)
    }
}

fn infinite_unless_nan(radius: f64) -> f64 {
    if radius.is_nan() { f64::NAN } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formula::z_one;

    /// `Pr(X > x)` of a standard normal.
    fn tail(x: f64) -> f64 {
        statrs::function::erf::erfc(x / std::f64::consts::SQRT_2) / 2.0
    }

    const DELTAS: [f64; 9] = [1e-4, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7];

    /// Probability that the error of an estimate of the number `o`, with standard deviation 1,
    /// exceeds its bar, by a sum over the distribution of the error.
    fn exceedance(o: f64, delta: f64) -> f64 {
        let (z, step) = (z_two(delta), 1e-4);
        let outside = |error: f64| error.abs() > bar_of_radius(z / (o + error).abs(), delta) * o;
        let cells = (-80_000..80_000).map(|cell| f64::from(cell) * step);
        let mass = |left: f64| tail(left) - tail(left + step);
        cells.filter(|left| outside(left + step / 2.0)).map(mass).sum()
    }

    #[test]
    fn bars_of_numbers_are_exceeded_with_probability_delta_at_most() {
        for delta in DELTAS {
            for o in [0.01, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 50.0] {
                let probability = exceedance(o, delta);
                assert!(probability <= delta + 1e-4, "{probability} of {o}, at {delta}");
            }
        }
    }

    /// For small bars errors of both signs count; a bar of 1 is exceeded on one side only.
    #[test]
    fn bars_are_nearly_tight() {
        for delta in [0.01, 0.05, 0.1] {
            let one_sided = z_two(delta) / (2.0 * z_one(delta));
            let radius = radius_of_bar(1.0, delta);
            assert!(radius <= one_sided && radius > 0.9 * one_sided, "{radius}, {one_sided}");
        }
        let g = 0.1 / radius_of_bar(0.1, 0.1);
        assert!(g > 1.005 && g < 1.0101, "{g}");
    }

    /// Errors that spread over many directions are nearly orthogonal to the value and of constant
    /// length.
    #[test]
    fn bars_suffice_for_errors_in_many_directions() {
        for delta in DELTAS {
            for i in 1..1000 {
                let radius = f64::from(i) / 1000.0;
                let bar = bar_of_radius(radius, delta);
                assert!(bar >= radius / (1.0 - radius * radius).sqrt(), "{radius}, {delta}");
            }
        }
    }

    #[test]
    fn bars_rise_and_never_exceed_the_bar_for_any_distribution() {
        for delta in DELTAS {
            let mut last = 0.0;
            for i in 1..100_000 {
                let radius = f64::from(i) / 1e5;
                let bar = bar_of_radius(radius, delta);
                assert!(bar > last && bar <= sure_bar_of_radius(radius) * (1.0 + 1e-12));
                assert!(bar - last < 1e-3 * (1.0 + bar) * (1.0 + bar), "the bar is continuous");
                last = bar;
            }
            assert_eq!(bar_of_radius(1.0, delta), f64::INFINITY);
            assert_eq!(bar_of_radius(f64::INFINITY, delta), f64::INFINITY);
            assert!(bar_of_radius(f64::NAN, delta).is_nan());
        }
        assert!(sure_bar_of_radius(f64::NAN).is_nan());
    }

    #[test]
    fn radii_of_bars_invert_bars_of_radii() {
        for delta in DELTAS {
            for i in 1..1000 {
                let epsilon = f64::from(i) / 1000.0;
                let radius = radius_of_bar(epsilon, delta);
                let bar = bar_of_radius(radius, delta);
                assert!(bar <= epsilon && bar > epsilon * (1.0 - 1e-12), "{epsilon}: {bar}");
                let sure = sure_bar_of_radius(radius_of_sure_bar(epsilon));
                assert!((sure / epsilon - 1.0).abs() < 1e-12);
            }
            assert!(radius_of_bar(f64::INFINITY, delta) > 1.0 - 1e-12);
        }
        assert_eq!(radius_of_sure_bar(f64::INFINITY), 1.0);
    }
}
