//! Bounds that are proved for every finite sample.
//!
//! They hold for a sum of independent terms, and for a sum of draws without replacement, since no
//! convex function of such a sum has a larger mean than with replacement (Hoeffding 1963, theorem
//! 4).

/// Upper bound on the length of a sum of independent centred vectors, except with probability
/// `delta`: the `r` that solves `2 exp(−r² / (2V + 2Kr/3)) = δ`.
///
/// `variance` is an upper bound on `V = Σ E|x|²`, and no vector is longer than `largest = K`.
/// Numbers are vectors of one element.
///
/// Pinelis (1994), "Optimum bounds for the distributions of martingales in Banach spaces".
pub fn bernstein_radius(delta: f64, variance: f64, largest: f64) -> f64 {
    let log = (2.0 / delta).ln();
    let linear = largest * log / 3.0;
    linear + (linear * linear + 2.0 * variance * log).sqrt()
}

/// Upper bound on the mean `V` of a sum of independent non-negative terms, except with probability
/// `delta`: `√V ≤ √(V^ + a) + √a`, `a = K ln(1/δ) / 2`.
///
/// `sum` is the observed value `V^` of the sum, and no term exceeds `largest = K`. The bound is the
/// lower tail of Bernstein's inequality, `Pr(V − V^ ≥ r) ≤ exp(−r² / (2 Σ E y²))`, with
/// `Σ E y² ≤ K V`, solved for `V`.
pub fn upper_bound(delta: f64, sum: f64, largest: f64) -> f64 {
    let a = largest * (1.0 / delta).ln() / 2.0;
    ((sum + a).sqrt() + a.sqrt()).powi(2)
}

/// Upper bound on the distance of `o^ = N^/D^` from `o = N/D`: `(r_U + |o^ − c| r_D) / (D^ − r_D)`.
///
/// `c` is a centre that is fixed before the draw, and `drift = |o^ − c|`. `U^ = N^ − c D^` is
/// within `radius_u = r_U` of `U`, and `D^`, which is `d`, within `radius_d = r_D` of `D`. The
/// bound follows from `o^ − o = [(U^ − U) − (o − c)(D^ − D)] / D^`. It is infinite if `r_D ≥ D^`.
pub fn output_error(radius_u: f64, radius_d: f64, drift: f64, d: f64) -> f64 {
    if radius_d < d { (radius_u + drift * radius_d) / (d - radius_d) } else { f64::INFINITY }
}

/// Upper bound on the error relative to the true value, if the error of an `estimate` is at most
/// `radius`: the `ε` that solves `radius = ε/(1 + ε) estimate`. It is infinite if
/// `radius ≥ estimate`.
pub fn relative_error(radius: f64, estimate: f64) -> f64 {
    if radius < estimate { radius / (estimate - radius) } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn the_radius_solves_its_equation(
            delta in 1e-9..0.5,
            variance in 0.0..1e3,
            largest in 1e-3..1e3,
        ) {
            let r = bernstein_radius(delta, variance, largest);
            let tail = 2.0 * (-r * r / (2.0 * variance + 2.0 * largest * r / 3.0)).exp();
            prop_assert!((tail / delta - 1.0).abs() < 1e-6);
        }

        #[test]
        fn the_upper_bound_solves_its_equation(
            delta in 1e-9..0.5,
            sum in 0.0..1e3,
            largest in 1e-3..1e3,
        ) {
            let v = upper_bound(delta, sum, largest);
            let tail = (-(v - sum).powi(2) / (2.0 * largest * v)).exp();
            prop_assert!(v >= sum && (tail / delta - 1.0).abs() < 1e-6);
        }

        /// One dimension, at every corner of the allowed errors of `U^` and `D^`.
        #[test]
        fn no_output_is_further_away_than_its_bound(
            n in -5.0..5.0_f64,
            d in 1.0..5.0_f64,
            c in -2.0..2.0_f64,
            r_u in 0.0..0.5_f64,
            r_d in 0.0..0.5_f64,
        ) {
            let u = n - c * d;
            for (a, b) in [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0), (0.3, -0.7)] {
                let (u_hat, d_hat) = (u + a * r_u, d + b * r_d);
                let out = c + u_hat / d_hat;
                let bound = output_error(r_u, r_d, (out - c).abs(), d_hat);
                prop_assert!((out - n / d).abs() <= bound * (1.0 + 1e-9) + 1e-12);
            }
        }
    }
}
