//! Bounds that are proved: no quantity in them is estimated, and none of their radii is asymptotic.
//!
//! A sum of independent terms, or `b` times a mean of `b` draws without replacement (Hoeffding
//! 1963, theorem 4: no convex function of such a sum has a larger mean than with replacement).

/// Upper bound on the length of a sum of independent centred vectors, but for probability delta:
/// `r` with `2 exp(−r² / (2V + 2Kr/3)) = δ`. `variance` is at least `V = Σ E|x|²`, and no vector is
/// longer than `largest = K`. Numbers are vectors too.
///
/// Pinelis (1994), "Optimum bounds for the distributions of martingales in Banach spaces".
pub fn bernstein_radius(delta: f64, variance: f64, largest: f64) -> f64 {
    let log = (2.0 / delta).ln();
    let linear = largest * log / 3.0;
    linear + (linear * linear + 2.0 * variance * log).sqrt()
}

/// Upper bound on the mean of a sum of independent non-negative terms, but for probability delta, from
/// its observed value; no term exceeds `largest`: `√V ≤ √(V^ + a) + √a`, `a = K ln(1/δ) / 2`.
///
/// The lower tail of Bernstein's inequality, `Pr(V − V^ ≥ r) ≤ exp(−r² / (2 Σ E y²))`, with
/// `Σ E y² ≤ K V`, solved for `V`.
pub fn upper_bound(delta: f64, sum: f64, largest: f64) -> f64 {
    let a = largest * (1.0 / delta).ln() / 2.0;
    ((sum + a).sqrt() + a.sqrt()).powi(2)
}

/// Upper bound on the distance of `o^ = N^/D^` from `o = N/D`, if `U^ = N^ − c D^` is within `radius_u` of
/// `U` and `D^` within `radius_d` of `D`, for a centre `c` fixed before the draw, of which `o^` is
/// `drift` away: `(r_U + |o^ − c| r_D) / (D^ − r_D)`.
///
/// From `o^ − o = [(U^ − U) − (o − c)(D^ − D)] / D^`. Infinite if `r_D ≥ D^`.
pub fn output_error(radius_u: f64, radius_d: f64, drift: f64, d: f64) -> f64 {
    if radius_d < d { (radius_u + drift * radius_d) / (d - radius_d) } else { f64::INFINITY }
}

/// The relative error that an error of `radius` is at most, of what is estimated as
/// `estimate`: `ε` such that `radius ≤ ε/(1 + ε) estimate`.
pub fn relative_error(radius: f64, estimate: f64) -> f64 {
    if radius < estimate { radius / (estimate - radius) } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn the_radius_solves_its_equation(delta in 1e-9..0.5, variance in 0.0..1e3, largest in 1e-3..1e3) {
            let r = bernstein_radius(delta, variance, largest);
            let tail = 2.0 * (-r * r / (2.0 * variance + 2.0 * largest * r / 3.0)).exp();
            prop_assert!((tail / delta - 1.0).abs() < 1e-6);
        }

        #[test]
        fn the_upper_bound_solves_its_equation(delta in 1e-9..0.5, sum in 0.0..1e3, largest in 1e-3..1e3) {
            let v = upper_bound(delta, sum, largest);
            let tail = (-(v - sum).powi(2) / (2.0 * largest * v)).exp();
            prop_assert!(v >= sum && (tail / delta - 1.0).abs() < 1e-6);
        }

        /// In one dimension, at every corner of what is allowed, and nearly attained.
        #[test]
        fn no_output_is_further_away(n in -5.0..5.0_f64, d in 1.0..5.0_f64, c in -2.0..2.0_f64, r_u in 0.0..0.5_f64, r_d in 0.0..0.5_f64) {
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
