//! Softmax of logits, added to shares of the attention.

use std::f32::consts::LOG2_E;

use multiversion::multiversion;

/// Number of lanes that are summed in parallel.
const LANES: usize = 16;

/// Adds the softmax of `logits` to `shares`, which has the same length. A logit may be −∞.
///
/// Shares below e^−87 times the largest are raised to that value.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
pub(super) fn add_shares(mut logits: Vec<f32>, shares: &mut [f32]) {
    let most = combine(&logits, f32::MIN, |a, b| if a > b { a } else { b });
    for x in &mut logits {
        *x = exp(*x - most);
    }
    let total = combine(&logits, 0.0, |a, b| a + b);
    for (share, x) in shares.iter_mut().zip(&logits) {
        *share += x / total;
    }
}

/// Combines all numbers in [`LANES`] lanes and a fixed order.
#[inline(always)]
fn combine(numbers: &[f32], neutral: f32, with: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [neutral; LANES];
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = with(*lane, x);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(neutral, with)
}

/// Computes `exp(max(x, −87))` for `x ≤ 0`, to a few units in the last place, by operations that
/// vectorise: 2 to a whole power, times the Taylor series of the rest, which is at most ln 2 / 2.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding this number rounds to a whole number, which is then in the lowest bits; subtracting
    /// it again leaves the whole number.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 as a sum of two parts; the first is short enough that its products with whole numbers
    /// are exact.
    const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
    let x = if x > -87.0 { x } else { -87.0 };
    let rounded = x * LOG2_E + ROUND;
    let whole = rounded - ROUND;
    let rest = (x - whole * LN_2[0]) - whole * LN_2[1];
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let mut power = 1.0 / 5040.0;
    for coefficient in series {
        power = power * rest + coefficient;
    }
    power * f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
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
        fn exp_matches_the_standard_library(x in -87.0_f32..=0.0) {
            let exact = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) / exact - 1.0).abs() < 5e-7);
        }

        /// The result matches the definition, with −∞ for tokens that do not count.
        #[test]
        fn shares_are_a_softmax(
            logits in prop::collection::vec(
                prop_oneof![4 => -30.0_f32..30.0, 1 => Just(f32::NEG_INFINITY)],
                1..99,
            ),
        ) {
            prop_assume!(logits.iter().any(|x| x.is_finite()));
            let mut shares = vec![1.0; logits.len()];
            add_shares(logits.clone(), &mut shares);
            let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            for (share, &x) in shares.iter().zip(&logits) {
                prop_assert!((f64::from(*share) - 1.0 - f64::from(x).exp() / total).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn extreme_logits_have_finite_shares() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), exp(-87.0));
        let mut shares = [0.0; 3];
        add_shares(vec![f32::NEG_INFINITY; 3], &mut shares);
        assert!(shares.iter().all(|share| share.is_finite()));
    }
}
