//! Exact tests of a failure rate by a count of failures.

use std::f64::consts::E;

use statrs::function::beta::{beta_reg, inv_beta_reg};

/// Probability of at least `failures` in `trials` if the true rate is `rate`:
/// `P(Binomial(trials, rate) ≥ failures)`.
pub fn p_value(failures: usize, trials: usize, rate: f64) -> f64 {
    match failures {
        0 => 1.0,
        _ if failures > trials => 0.0,
        // The power is exact, so that `least_trials` agrees with this function.
        _ if failures == trials => rate.powf(trials as f64),
        _ => beta_reg(failures as f64, (trials - failures + 1) as f64, rate),
    }
}

/// Upper bound on the probability of at least `failures` in `trials` independent trials whose
/// rates may differ and have the mean `mean_rate`.
///
/// Where `failures` exceeds the expected number by at least 1, the binomial tail of the mean rate
/// bounds it (Hoeffding 1956, "On the distribution of the number of successes in independent
/// trials", Annals of Mathematical Statistics 27, theorem 4); elsewhere the bound is 1.
pub fn mixed_p_value(failures: usize, trials: usize, mean_rate: f64) -> f64 {
    if (failures as f64) < trials as f64 * mean_rate + 1.0 {
        return 1.0;
    }
    p_value(failures, trials, mean_rate)
}

/// Upper bound on the probability that the sum of `terms` independent variables in `[0, 1]`, whose
/// means average at most `mean`, is at least `sum`.
///
/// The bound is `e · P(Binomial(terms, mean) ≥ sum)` (Bentkus 2004, "On Hoeffding's inequalities",
/// Annals of Probability 32). It also holds where each mean is at most `mean` given the terms
/// before it.
pub fn bounded_sum_p_value(sum: usize, terms: usize, mean: f64) -> f64 {
    (E * p_value(sum, terms, mean)).min(1.0)
}

/// Least number of trials that contradict a rate if all of them fail: `rate^trials < limit`.
///
/// Cost: O(log trials) powers.
pub fn least_trials(rate: f64, limit: f64) -> usize {
    let contradicts = |trials: usize| p_value(trials, trials, rate) < limit;
    let mut enough = 1_usize;
    while !contradicts(enough) && enough < usize::MAX / 2 {
        enough *= 2;
    }
    first_true(enough / 2, enough, contradicts)
}

/// First number above `below` for which a monotone `condition` holds, given that it holds for
/// `known` and does not for `below`.
pub(crate) fn first_true(below: usize, known: usize, condition: impl Fn(usize) -> bool) -> usize {
    let (mut no, mut yes) = (below, known);
    while yes - no > 1 {
        let middle = usize::midpoint(no, yes);
        *(if condition(middle) { &mut yes } else { &mut no }) = middle;
    }
    yes
}

/// Clopper–Pearson upper bound: the true rate exceeds this bound with probability at most `alpha`.
pub fn upper_bound(failures: usize, trials: usize, alpha: f64) -> f64 {
    if failures >= trials {
        return 1.0;
    }
    inv_beta_reg((failures + 1) as f64, (trials - failures) as f64, 1.0 - alpha)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares tails with sums of binomial probabilities.
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
    fn the_documented_number_of_failures_is_right() {
        assert!(p_value(149, 2000, 0.05) >= 1e-6);
        assert!(p_value(150, 2000, 0.05) < 1e-6);
    }

    #[test]
    fn least_trials_are_the_first_that_can_contradict() {
        assert_eq!(least_trials(0.1, 1e-6), 7, "six are exactly a millionth");
        assert_eq!(least_trials(0.5, 0.6), 1);
        for (rate, limit) in [(0.1, 1e-6 / 576.0), (0.99, 1e-6), (0.02, 1e-9), (0.999_999, 1e-3)] {
            let least = least_trials(rate, limit);
            assert!(p_value(least, least, rate) < limit);
            assert!(p_value(least - 1, least - 1, rate) >= limit);
        }
    }

    /// Compares bounds with exact tails of sums with two different rates, by convolution.
    #[test]
    fn mixed_rates_are_bounded_by_their_mean() {
        let term = |n: usize, rate: f64, k: usize| {
            p_value(k, n, rate) - if k == n { 0.0 } else { p_value(k + 1, n, rate) }
        };
        for ((few, low), (many, high)) in [((30, 0.01), (20, 0.3)), ((5, 0.001), (40, 0.02))] {
            let mean = (few as f64 * low + many as f64 * high) / (few + many) as f64;
            for count in 0..=few + many {
                let split =
                    |k: usize| term(few, low, k) * p_value(count.saturating_sub(k), many, high);
                let tail: f64 = (0..=few).map(split).sum();
                let bound = mixed_p_value(count, few + many, mean);
                assert!(tail <= bound * (1.0 + 1e-9) + 1e-300, "{count}: {tail} > {bound}");
                let informative = count as f64 > mean * (few + many) as f64 + 1.0;
                assert_eq!(bound < 1.0, informative, "{count}");
            }
        }
    }

    /// Compares bounds with exact tails of sums of variables that are `high` or 0 and have the same
    /// mean.
    #[test]
    fn sums_of_bounded_variables_are_bounded() {
        for (terms, mean) in [(2, 0.45), (64, 0.1), (10, 0.3)] {
            for high in [0.5, 0.75, 1.0] {
                for sum in 0..=terms {
                    let least = (sum as f64 / high).ceil() as usize;
                    let tail = p_value(least, terms, mean / high);
                    assert!(tail <= bounded_sum_p_value(sum, terms, mean), "{terms} {high} {sum}");
                }
            }
        }
        // Two terms that are 1/2 with probability 0.9: the binomial tail without the factor e is no
        // bound.
        assert!(p_value(2, 2, 0.9) > p_value(1, 2, 0.45));
        assert!(bounded_sum_p_value(60, 64, 0.1) < 1e-40);
    }

    #[test]
    fn upper_bounds_invert_the_binomial_tail() {
        assert!((upper_bound(0, 100, 0.025) - (1.0 - 0.025_f64.powf(0.01))).abs() < 1e-9);
        let upper = upper_bound(30, 1000, 0.05);
        assert!((1.0 - p_value(31, 1000, upper) - 0.05).abs() < 1e-9);
        assert_eq!(upper_bound(5, 5, 0.05), 1.0);
    }
}
