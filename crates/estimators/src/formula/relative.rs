//! From errors relative to an estimate to errors relative to what it estimates.
//!
//! A radius `R` bounds `|o^ − o| / |o^|` but for probability δ. An error bar `B` has to bound
//! `|o^ − o| / |o|`.

use super::z_two;

/// The error bar of a radius: `B = R + R² min(c R, 1 + R) / (1 − R²)`, `c = max(3/2, z² − 3/4) / 2`,
/// and infinite from `R = 1` on, where the true value may be 0 (eq. 8). It rises with the radius.
///
/// For Gaussian errors, of which `|o^| R` is the `1 − δ` quantile: an estimate that is too long errs
/// more often by `B |o|` than one that is too short, and `c` is what both together need. Verified
/// numerically, exactly for numbers, not proved.
pub fn bar_of_radius(radius: f64, delta: f64) -> f64 {
    bar(radius, curvature(delta))
}

/// The largest radius whose [bar](bar_of_radius) is at most `epsilon`: its inverse, by bisection.
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

/// `R / (1 − R)`, infinite from `R = 1` on: the error bar whatever the errors' distribution, since
/// `|o| ≥ |o^| − |o^ − o|`.
pub fn sure_bar_of_radius(radius: f64) -> f64 {
    if radius < 1.0 { radius / (1.0 - radius) } else { infinite_unless_nan(radius) }
}

/// `ε / (1 + ε)`: the inverse of [`sure_bar_of_radius`].
pub fn radius_of_sure_bar(epsilon: f64) -> f64 {
    1.0 / (1.0 + 1.0 / epsilon)
}

fn curvature(delta: f64) -> f64 {
    (z_two(delta).powi(2) - 0.75).max(1.5) / 2.0
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

    /// The probability that a number `o` is further than its bar from an estimate of standard
    /// deviation 1, by a sum over the distribution of the error.
    fn misses(o: f64, delta: f64) -> f64 {
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
                let misses = misses(o, delta);
                assert!(misses <= delta + 1e-4, "{misses} of {o}, at {delta}");
            }
        }
    }

    /// Both sides of the error count where the estimate is near; a bar of 1 leaves one side.
    #[test]
    fn bars_are_hardly_wider_than_they_must_be() {
        for delta in [0.01, 0.05, 0.1] {
            let one_sided = z_two(delta) / (2.0 * z_one(delta));
            let radius = radius_of_bar(1.0, delta);
            assert!(radius <= one_sided && radius > 0.9 * one_sided, "{radius}, {one_sided}");
        }
        let g = 0.1 / radius_of_bar(0.1, 0.1);
        assert!(g > 1.005 && g < 1.0101, "{g}");
    }

    /// Errors spread over many directions are orthogonal to the value, and of one length.
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
    fn bars_rise_and_no_bar_is_above_the_sure_one() {
        for delta in DELTAS {
            let mut last = 0.0;
            for i in 1..100_000 {
                let radius = f64::from(i) / 1e5;
                let bar = bar_of_radius(radius, delta);
                assert!(bar > last && bar <= sure_bar_of_radius(radius) * (1.0 + 1e-12));
                assert!(bar - last < 1e-3 * (1.0 + bar) * (1.0 + bar), "it does not jump");
                last = bar;
            }
            assert_eq!(bar_of_radius(1.0, delta), f64::INFINITY);
            assert_eq!(bar_of_radius(f64::INFINITY, delta), f64::INFINITY);
            assert!(bar_of_radius(f64::NAN, delta).is_nan());
        }
        assert!(sure_bar_of_radius(f64::NAN).is_nan());
    }

    #[test]
    fn the_inverse_is_one() {
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
