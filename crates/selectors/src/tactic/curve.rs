//! Curve of the weights along an order of tokens, fitted to a few of them.

use std::ops::Range;

use multiversion::multiversion;
use vattention_core::{
    Fraction, Size,
    step::{exponentials, largest, sum},
};

/// Weights at each rank of an order, from rank 0 on: the first are exact, and the others are
/// `max(a/x + b, 0)` at `x = rank + 1`.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    tokens: usize,
    /// Exact weights of the first ranks.
    exact: Vec<f64>,
    pub(super) a: f64,
    pub(super) b: f64,
}

impl Curve {
    /// Fits the curve of `tokens` tokens to the logits of some of them. `logits` returns the logits
    /// at a range of ranks.
    pub(super) fn new(
        tokens: usize,
        exact: Size,
        logits: impl Fn(Range<usize>) -> Vec<f32>,
    ) -> Self {
        let exact = exact.to_tokens(tokens);
        let Some(windows) = find_windows(tokens, exact) else {
            let all = logits(0..tokens);
            return Self { tokens, exact: weights(&all, largest(&all)), a: 0.0, b: 0.0 };
        };
        let (first, later) = (logits(0..exact), windows.clone().map(logits));
        let shift = later.iter().map(|window| largest(window)).fold(largest(&first), f32::max);
        let means = later.map(|window| mean(weights(&window, shift).into_iter()));
        let (a, b) = fit(&windows, means);
        Self { tokens, exact: weights(&first, shift), a, b }
    }

    /// Returns the smallest number of tokens, from the beginning of the order, whose weights reach
    /// `mass` of the sum of all weights. O(tokens).
    pub(super) fn count_for_mass(&self, mass: Fraction) -> usize {
        let weights = self.weights();
        let enough = mass.get() * sum(&weights);
        let (mut covered, mut count) = (0.0, 0);
        // Skips whole chunks that do not reach the mass.
        for chunk in weights.chunks(CHUNK) {
            let with_chunk = covered + sum(chunk);
            if with_chunk >= enough {
                break;
            }
            covered = with_chunk;
            count += chunk.len();
        }
        while count < weights.len() && covered < enough {
            covered += weights[count];
            count += 1;
        }
        count
    }

    /// Returns the weight at each rank.
    fn weights(&self) -> Vec<f64> {
        let mut weights = self.exact.clone();
        weights.resize(self.tokens, 0.0);
        fill_fitted(self.a, self.b, self.exact.len(), &mut weights[self.exact.len()..]);
        weights
    }
}

/// Number of weights that are summed together.
const CHUNK: usize = 64;

/// Fills in the weights of the ranks from `first` on by the curve.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn fill_fitted(a: f64, b: f64, first: usize, weights: &mut [f64]) {
    for (place, weight) in weights.iter_mut().enumerate() {
        let x = (first + 1) as f64 + f64::from(place as u32);
        let fitted = a * (1.0 / x) + b;
        *weight = if fitted > 0.0 { fitted } else { 0.0 };
    }
}

/// Returns the two ranges of ranks after the first `exact` whose weights are read; `None` if there
/// is no room for them.
fn find_windows(tokens: usize, exact: usize) -> Option<[Range<usize>; 2]> {
    let width = (tokens / 100).max(1);
    let first = exact.max(tokens / 10);
    let second = (first + width).max(tokens * 6 / 10);
    (second + width <= tokens).then(|| [first..first + width, second..second + width])
}

/// Returns `a` and `b` such that `a/x + b` has these means over two windows. `a` is not negative.
fn fit(windows: &[Range<usize>; 2], means: [f64; 2]) -> (f64, f64) {
    let [near, far] = windows.clone().map(|ranks| mean(ranks.map(inverse)));
    let a = (means[0] - means[1]) / (near - far);
    if a < 0.0 { (0.0, f64::midpoint(means[0], means[1])) } else { (a, means[0] - a * near) }
}

/// Computes `1/x` at `x = rank + 1`.
fn inverse(rank: usize) -> f64 {
    1.0 / (rank + 1) as f64
}

fn mean(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = numbers.len();
    numbers.sum::<f64>() / count as f64
}

/// Computes `exp(logit − shift)`.
fn weights(logits: &[f32], shift: f32) -> Vec<f64> {
    exponentials(logits, shift.into(), 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mass(mass: f64) -> Fraction {
        Fraction::try_from(mass).unwrap()
    }

    /// Returns the curve of `weights`, of which only the requested ones are read.
    fn curve_of(weights: &[f64], exact: usize) -> Curve {
        Curve::new(weights.len(), Size::Tokens(exact), |ranks| {
            weights[ranks].iter().map(|weight| weight.ln() as f32).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Weights that follow the curve are recovered, and with them the count.
        #[test]
        fn a_curve_is_recovered(
            a in 0.1_f64..5.0, b in 0.0_f64..0.02, tokens in 20_usize..3000, share in 0.05..0.95,
        ) {
            let weights: Vec<f64> = (1..=tokens).map(|x| a / x as f64 + b).collect();
            let curve = curve_of(&weights, 1 + tokens / 50);
            let enough = share * weights.iter().sum::<f64>();
            let mut covered = 0.0;
            let fewest = weights.iter().take_while(|&weight| {
                covered += weight;
                covered < enough
            });
            let expected = fewest.count() + 1;
            let found = curve.count_for_mass(mass(share));
            prop_assert!(found.abs_diff(expected) <= 1 + expected / 100, "{found}, not {expected}");
        }

        /// For any weights, a larger mass takes at least as many tokens, at least one, and at most
        /// all.
        #[test]
        fn more_mass_takes_no_less(
            weights in prop::collection::vec(1e-6_f64..1.0, 1..300),
            low in 0.01..0.99,
            high in 0.01..0.99,
        ) {
            let curve = curve_of(&weights, 1 + weights.len() / 50);
            let count = |share| curve.count_for_mass(mass(share));
            let (few, many) = (count(f64::min(low, high)), count(f64::max(low, high)));
            prop_assert!(1 <= few && few <= many && many <= weights.len());
        }

        /// With too few tokens for a curve, the count is the smallest that holds the mass.
        #[test]
        fn weights_of_few_tokens_are_all_exact(
            weights in prop::collection::vec(0.01_f64..1.0, 1..30), share in 0.05..0.95,
        ) {
            let found = curve_of(&weights, weights.len()).count_for_mass(mass(share));
            let total: f64 = weights.iter().sum();
            let held = |count: usize| weights[..count].iter().sum::<f64>();
            prop_assert!(held(found) >= (share - 1e-5) * total);
            prop_assert!(held(found - 1) <= (share + 1e-5) * total);
        }
    }

    /// If the far window is heavier than the near one, the tail is flat.
    #[test]
    fn rising_weights_have_a_flat_curve() {
        let rising: Vec<f64> = (1..=200).map(f64::from).collect();
        let curve = curve_of(&rising, 4);
        assert_eq!(curve.a, 0.0);
        assert!(curve.b > 0.0);
        assert!(curve.weights()[4..].iter().all(|&weight| weight == curve.b));
    }

    #[test]
    fn an_empty_order_takes_no_tokens() {
        assert_eq!(curve_of(&[], 1).count_for_mass(mass(0.5)), 0);
    }
}
