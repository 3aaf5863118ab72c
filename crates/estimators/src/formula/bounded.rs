//! Bounds from a range instead of a variance.

/// Hoeffding's sample size for an error of at most `tolerance` in the estimated sum of `n_s`
/// numbers, except with probability `delta`: `b = range² n_s² ln(2/δ) / (2 tolerance²)`.
///
/// The numbers lie in an interval of length `range`, and the population is infinite.
///
/// Hoeffding (1963), "Probability inequalities for sums of bounded random variables".
pub fn hoeffding(delta: f64, n_s: f64, range: f64, tolerance: f64) -> f64 {
    (n_s * hoeffding_radius(delta, range) / tolerance).powi(2)
}

/// Hoeffding's radius of a mean at one draw, which `b` draws divide by `√b`:
/// `range √(ln(2/δ) / 2)`.
pub fn hoeffding_radius(delta: f64, range: f64) -> f64 {
    range * ((2.0 / delta).ln() / 2.0).sqrt()
}

/// McDiarmid's radius of a mean of vectors at one draw: `√Tr + diameter √(ln(1/δ) / 2)`, from the
/// trace of their covariance and the diameter of their set.
pub fn mcdiarmid_radius(delta: f64, trace: f64, diameter: f64) -> f64 {
    trace.sqrt() + diameter * ((1.0 / delta).ln() / 2.0).sqrt()
}

/// McDiarmid's radius of a mean of vectors, for a sample size.
#[derive(Clone, Copy, Debug)]
pub struct McDiarmid {
    /// Upper bound on the expected length of the error.
    mean: f64,
    /// Factor of `√ln(1/δ)`.
    slope: f64,
}

impl McDiarmid {
    /// Radius for `b` draws without replacement out of `n` vectors, from the trace of their
    /// covariance and the diameter of their set. O(b).
    pub fn new(b: usize, n: usize, trace: f64, diameter: f64) -> Self {
        if b >= n {
            return Self { mean: 0.0, slope: 0.0 };
        }
        let (draws, all) = (b as f64, n as f64);
        let share = |i: usize| ((all - draws) / (all - i as f64)).powi(2);
        let rho = (1..=b).map(share).sum::<f64>() / draws;
        Self {
            mean: (trace * (1.0 / draws - 1.0 / all)).sqrt(),
            slope: diameter * (rho / (2.0 * draws)).sqrt(),
        }
    }

    /// Radius for `b` draws from an infinite population.
    pub fn infinite(b: f64, trace: f64, diameter: f64) -> Self {
        Self { mean: (trace / b).sqrt(), slope: diameter / (2.0 * b).sqrt() }
    }

    /// Length that the error exceeds with probability `delta` at most.
    pub fn radius(&self, delta: f64) -> f64 {
        self.mean + self.slope * (1.0 / delta).ln().sqrt()
    }
}

/// [`McDiarmid::radius`] for a single use.
pub fn mcdiarmid_radius_of(b: usize, n: usize, delta: f64, trace: f64, diameter: f64) -> f64 {
    McDiarmid::new(b, n, trace, diameter).radius(delta)
}

/// Factor of Hoeffding's squared radius for sampling without replacement: `1 − (b − 1)/n`, or
/// `(1 − b/n)(1 + 1/b)` for `b > n/2`.
///
/// Bardenet, Maillard (2015), "Concentration inequalities for sampling without replacement".
pub fn serfling_factor(b: f64, n: f64) -> f64 {
    if b <= n / 2.0 { 1.0 - (b - 1.0) / n } else { (1.0 - b / n) * (1.0 + 1.0 / b) }
}

/// Upper bound on the distance of a sample's mean from the population's, except with probability
/// `delta`: `deviation √(2ρL/b) + (7/3 + 3/√2) range L/b`, `L = ln(10/δ)`, ρ the
/// [`serfling_factor`].
///
/// `b` numbers are drawn without replacement out of `n` in an interval of length `range`, and
/// `deviation` is the sample's standard deviation (divisor `b`).
///
/// Bardenet, Maillard (2015), theorem 4.3, used for both tails.
pub fn empirical_bernstein(delta: f64, b: usize, n: usize, deviation: f64, range: f64) -> f64 {
    let draws = b as f64;
    let log = (10.0 / delta).ln();
    let shrink = serfling_factor(draws, n as f64).max(0.0);
    deviation * (2.0 * shrink * log / draws).sqrt()
        + (7.0 / 3.0 + 3.0 / 2.0_f64.sqrt()) * range * log / draws
}

/// Smallest `b` with `b ≥ b0 · serfling_factor(b, n)`.
pub fn serfling(b0: f64, n: f64) -> f64 {
    // `f64::max` would drop a NaN below.
    if b0.is_nan() || b0.is_infinite() {
        return n;
    }
    let before = b0 * (1.0 + 1.0 / n) / (1.0 + b0 / n);
    if before <= n / 2.0 {
        return before;
    }
    let k = b0 * (1.0 - 1.0 / n);
    let after = (k + (k * k + 4.0 * b0 * (1.0 + b0 / n)).sqrt()) / (2.0 * (1.0 + b0 / n));
    before.min(after.max(n / 2.0))
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
        fn serfling_solves_its_equation(b0 in 1.0..1e7, n in 64.0..1e5) {
            let b = serfling(b0, n);
            prop_assert!(b <= b0 * (1.0 + 1.0 / n) && b <= n + 1.0);
            let jump = (b - n / 2.0).abs() < 1e-6 * n;
            prop_assert!(jump || (b / (b0 * serfling_factor(b, n)) - 1.0).abs() < 1e-6);
        }

        #[test]
        fn drawing_all_leaves_no_error(
            n in 2usize..2000,
            trace in 0.0..10.0,
            diameter in 0.0..10.0,
        ) {
            let radius = |b| mcdiarmid_radius_of(b, n, 0.1, trace, diameter);
            prop_assert_eq!(radius(n), 0.0);
            let half = (n / 2) as f64;
            let with_replacement = mcdiarmid_radius(0.1, trace, diameter) / half.sqrt();
            prop_assert!(radius(n / 2) <= with_replacement + 1e-12);
        }
    }

    /// `0.1 √(2 (1 − 99/1000) L/100) + (7/3 + 3/√2) L/100` with `L = ln(10/0.1)`.
    #[test]
    fn the_empirical_bound_has_the_constants_of_the_paper() {
        let bound = empirical_bernstein(0.1, 100, 1000, 0.1, 1.0);
        assert!((bound - 0.233_951_529).abs() < 1e-9, "{bound}");
    }

    #[test]
    fn a_budget_that_is_not_a_number_reads_everything() {
        assert_eq!(serfling(f64::NAN, 100.0), 100.0);
    }
}
