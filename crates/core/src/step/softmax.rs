//! Running sums of a softmax-weighted average.

/// `D = Σ w e^(logit − shift)` and `N = Σ w e^(logit − shift) v` over some tokens, in f64.
///
/// Sums over disjoint sets of tokens can be merged, so a row may be computed in parts, in any
/// order. The empty sum is the neutral element.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    shift: f64,
    denominator: f64,
    numerator: Vec<f64>,
}

impl Softmax {
    /// Creates the sums over no tokens, for values `[value_dim]`.
    pub fn new(value_dim: usize) -> Self {
        Self { shift: f64::NEG_INFINITY, denominator: 0.0, numerator: vec![0.0; value_dim] }
    }

    /// Creates sums from `denominator` and `numerator` `[value_dim]`, relative to `shift`.
    pub fn from_sums(shift: f64, denominator: f64, numerator: Vec<f64>) -> Self {
        Self { shift, denominator, numerator }
    }

    /// Adds one token with a `value` `[value_dim]` and the inverse of its inclusion probability as
    /// `weight`.
    pub fn add(&mut self, logit: f64, weight: f64, value: &[f32]) {
        self.raise(logit);
        let e = weight * (logit - self.shift).exp();
        self.denominator += e;
        for (n, &v) in self.numerator.iter_mut().zip(value) {
            *n += e * f64::from(v);
        }
    }

    /// Adds an attention sink, which counts as a token with the value zero.
    pub fn add_sink(&mut self, logit: f64) {
        self.add(logit, 1.0, &[]);
    }

    /// Adds sums over other tokens.
    pub fn merge(&mut self, other: &Self) {
        if other.denominator == 0.0 {
            return;
        }
        self.raise(other.shift);
        let scale = (other.shift - self.shift).exp();
        self.denominator += scale * other.denominator;
        for (n, o) in self.numerator.iter_mut().zip(&other.numerator) {
            *n += scale * o;
        }
    }

    /// Multiplies the weight of every token by `factor`.
    pub fn scale(&mut self, factor: f64) {
        self.denominator *= factor;
        self.numerator.iter_mut().for_each(|n| *n *= factor);
    }

    fn raise(&mut self, shift: f64) {
        if shift > self.shift {
            self.rebase(shift);
        }
    }

    /// Makes the sums relative to another shift.
    pub fn rebase(&mut self, shift: f64) {
        let scale = self.scale_to(shift);
        self.denominator *= scale;
        self.numerator.iter_mut().for_each(|n| *n *= scale);
        self.shift = shift;
    }

    /// Factor of sums that makes them relative to another shift.
    pub(crate) fn scale_to(&self, shift: f64) -> f64 {
        if self.denominator == 0.0 { 0.0 } else { (self.shift - shift).exp() }
    }

    /// Logit whose exponential is 1 in these sums; −∞ for an empty sum.
    pub fn shift(&self) -> f64 {
        self.shift
    }

    /// `D`, relative to the shift.
    pub fn denominator(&self) -> f64 {
        self.denominator
    }

    /// `D`, relative to another shift.
    pub fn denominator_at(&self, shift: f64) -> f64 {
        self.denominator * self.scale_to(shift)
    }

    /// `N` `[value_dim]`, relative to the shift.
    pub fn numerator(&self) -> &[f64] {
        &self.numerator
    }

    /// `ln D` without a shift (log-sum-exp); −∞ for an empty sum.
    pub fn log_denominator(&self) -> f64 {
        self.shift + self.denominator.ln()
    }

    /// `N / D` `[value_dim]`, the attention output.
    pub fn output(&self) -> Vec<f64> {
        self.numerator.iter().map(|n| n / self.denominator).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;
    use proptest::prelude::*;

    #[test]
    fn sums_of_two_tokens() {
        let mut softmax = Softmax::new(1);
        softmax.add(0.0, 1.0, &[1.0]);
        softmax.add(2.0_f64.ln(), 2.0, &[10.0]);
        assert_relative_eq!(softmax.log_denominator(), 5.0_f64.ln(), epsilon = 1e-12);
        assert_relative_eq!(softmax.output()[0], 41.0 / 5.0, epsilon = 1e-12);
    }

    #[test]
    fn an_empty_sum_stays_empty_at_any_shift() {
        for shift in [f64::NEG_INFINITY, -800.0, 0.0, 800.0] {
            let mut softmax = Softmax::new(1);
            softmax.rebase(shift);
            assert_eq!((softmax.denominator(), softmax.numerator()), (0.0, &[0.0][..]));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Merged parts, some of them empty, equal the sum over all tokens.
        #[test]
        fn merged_parts_equal_the_whole(
            logits in prop::collection::vec(-800.0..800.0, 1..30),
            split in 0usize..31,
        ) {
            let fill = |range: &[f64]| {
                let mut sum = Softmax::new(2);
                for &l in range {
                    sum.add(l, 1.5, &[l as f32, 1.0]);
                }
                sum
            };
            let split = split.min(logits.len());
            let whole = fill(&logits);
            let mut merged = Softmax::new(2);
            merged.merge(&fill(&logits[split..]));
            merged.merge(&fill(&logits[..split]));
            prop_assert!((whole.log_denominator() - merged.log_denominator()).abs() < 1e-9);
            for (a, b) in whole.output().iter().zip(merged.output()) {
                prop_assert!((a - b).abs() <= 1e-9 * a.abs().max(1.0));
            }
        }
    }
}
