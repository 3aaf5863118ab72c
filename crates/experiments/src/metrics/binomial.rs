//! Exact statements about a failure rate from a count of failures.

use statrs::function::beta::{beta_reg, inv_beta_reg};

/// How probable it is to see at least `failures` in `trials` if the true rate is `rate`:
/// `P(Binomial(trials, rate) ≥ failures)`.
pub fn p_value(failures: usize, trials: usize, rate: f64) -> f64 {
    if failures == 0 {
        return 1.0;
    }
    beta_reg(failures as f64, (trials - failures + 1) as f64, rate)
}

/// The Clopper–Pearson upper bound: the true rate exceeds it with probability at most `alpha`.
pub fn upper_bound(failures: usize, trials: usize, alpha: f64) -> f64 {
    if failures >= trials {
        return 1.0;
    }
    inv_beta_reg((failures + 1) as f64, (trials - failures) as f64, 1.0 - alpha)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of the probabilities themselves.
    #[test]
    fn tails_are_exact() {
        let choose =
            |n: u32, k: u32| (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product::<f64>();
        for (n, rate) in [(10_u32, 0.05_f64), (40, 0.3), (7, 0.9)] {
            for k in 0..=n {
                let term =
                    |j: u32| choose(n, j) * rate.powi(j as i32) * (1.0 - rate).powi((n - j) as i32);
                let tail: f64 = (k..=n).map(term).sum();
                assert!((p_value(k as usize, n as usize, rate) - tail).abs() < 1e-12);
            }
        }
    }

    /// 149 failures in 2,000 trials do not contradict a rate of 0.05 at 1e-6; 150 do.
    #[test]
    fn the_working_number_is_what_it_is_said_to_be() {
        assert!(p_value(149, 2000, 0.05) >= 1e-6);
        assert!(p_value(150, 2000, 0.05) < 1e-6);
    }

    #[test]
    fn upper_bounds_are_where_the_tail_begins() {
        assert!((upper_bound(0, 100, 0.025) - (1.0 - 0.025_f64.powf(0.01))).abs() < 1e-9);
        let upper = upper_bound(30, 1000, 0.05);
        assert!((1.0 - p_value(31, 1000, upper) - 0.05).abs() < 1e-9);
        assert_eq!(upper_bound(5, 5, 0.05), 1.0);
    }
}
