//! Conversion of a real-valued budget for an infinite population to a number of tokens.

/// Finite-population correction of a budget (eq. 4): the size of a sample without replacement out
/// of `n` that is as accurate as `b0` draws from an infinite population.
///
/// The correction is exact for variances with the divisor `n − 1`: the variance of a mean is
/// `S² (1/b − 1/n)` (Cochran, Sampling Techniques, 2.15).
pub fn fpc(b0: f64, n: usize) -> f64 {
    if b0.is_infinite() { n as f64 } else { b0 / (1.0 + b0 / n as f64) }
}

/// Number of draws from an infinite population that is as accurate as `b` draws out of `n`: the
/// inverse of [`fpc`].
pub fn unbounded(b: f64, n: usize) -> f64 {
    let left = 1.0 - b / n as f64;
    if left > 0.0 { b / left } else { f64::INFINITY }
}

/// Rounds a budget up to whole tokens, between 1 and `n_s`. A NaN budget, from undefined
/// statistics, results in `n_s`.
///
/// A relative slack of 1e-9 prevents rounding errors from adding a token.
pub fn whole_tokens(b: f64, n_s: usize) -> usize {
    if n_s == 0 {
        return 0;
    }
    if b.is_nan() || b >= n_s as f64 {
        return n_s;
    }
    ((b - 1e-9 * b.abs().max(1.0)).ceil().max(1.0) as usize).min(n_s)
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
        fn the_correction_never_enlarges_a_budget(b0 in 0.0..1e9, n in 1usize..100_000) {
            let b = fpc(b0, n);
            prop_assert!(b <= b0 && b <= n as f64);
            prop_assert!(whole_tokens(b, n) <= n);
        }
    }

    #[test]
    fn nan_and_infinite_budgets_read_everything() {
        assert_eq!(whole_tokens(f64::NAN, 10), 10);
        assert_eq!(whole_tokens(f64::INFINITY, 10), 10);
        assert_eq!(whole_tokens(fpc(f64::INFINITY, 10), 10), 10);
        assert_eq!(whole_tokens(0.0, 10), 1);
        assert_eq!(whole_tokens(5.0, 0), 0);
    }
}
