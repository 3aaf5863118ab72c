//! Recall of attention weight: the weight of the chosen tokens, relative to that of the same number
//! of heaviest tokens.

use ndarray::{Array1, ArrayView1, ArrayView2};

use crate::Exact;

/// Attention weights of one row, by token.
#[derive(Clone, Debug)]
pub(crate) struct ExactWeights {
    tokens: Vec<f32>,
    /// Weight of the attention sink; 0 without a sink.
    sink: f64,
}

impl ExactWeights {
    /// Stores the weights `e / D`, `[visible]`, in 4 bytes per token, and that of the sink.
    pub(crate) fn new(weights: ArrayView1<'_, f64>, sink: f64) -> Self {
        Self { tokens: weights.iter().map(|&weight| weight as f32).collect(), sink }
    }

    /// Returns the weight of the tokens, relative to that of the same number of heaviest tokens; 1
    /// if the latter weight is 0.
    pub(crate) fn recall(&self, tokens: impl ExactSizeIterator<Item = usize>) -> f64 {
        let largest_weight = self.largest_weight(tokens.len());
        let held: f64 = tokens.map(|token| f64::from(self.tokens[token])).sum();
        if largest_weight == 0.0 { 1.0 } else { held / largest_weight }
    }

    /// Computes exact attention over some tokens and the sink alone; `values` has the rows of all
    /// tokens, `[tokens, value_dim]`. The result's `log_denominator` is relative to the denominator
    /// over all tokens.
    pub(crate) fn over(&self, tokens: &[u32], values: &ArrayView2<'_, f32>) -> Exact {
        let mut numerator = Array1::<f64>::zeros(values.ncols());
        let mut denominator = self.sink;
        for &token in tokens {
            let weight = f64::from(self.tokens[token as usize]);
            let value = values.row(token as usize).mapv(f64::from);
            denominator += weight;
            numerator.scaled_add(weight, &value);
        }
        Exact { output: numerator / denominator, log_denominator: denominator.ln() }
    }

    /// Returns the weight of the `count` heaviest tokens.
    fn largest_weight(&self, count: usize) -> f64 {
        let mut weights = self.tokens.clone();
        if count < weights.len() {
            weights.select_nth_unstable_by(count, |a, b| b.total_cmp(a));
        }
        weights[..count].iter().copied().map(f64::from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    /// The second and the last of the weights 0.1, 0.4, 0.2, 0.3 are 4/7 and 3/7 of their sum.
    #[test]
    fn attention_over_some_tokens_normalizes_their_weights() {
        let attention = ExactWeights::new(array![0.1, 0.4, 0.2, 0.3].view(), 0.0);
        let values = array![[9.0_f32, 9.0], [7.0, 0.0], [9.0, 9.0], [0.0, 14.0]];
        let exact = attention.over(&[1, 3], &values.view());
        let expected = array![4.0, 6.0];
        assert!((&exact.output - &expected).iter().all(|x| x.abs() < 1e-6), "{exact:?}");
        assert!((exact.log_denominator - 0.7_f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn recall_is_relative_to_the_heaviest_tokens_of_the_same_number() {
        let attention = ExactWeights::new(array![0.1, 0.4, 0.2, 0.3].view(), 0.0);
        let recall = |tokens: &[usize]| attention.recall(tokens.iter().copied());
        assert!((recall(&[1, 3]) - 1.0).abs() < 1e-6);
        assert!((recall(&[0, 3]) - 4.0 / 7.0).abs() < 1e-6);
        assert!((recall(&[0]) - 0.25).abs() < 1e-6);
        assert!((recall(&[0, 1, 2, 3]) - 1.0).abs() < 1e-6);
        assert_eq!(recall(&[]), 1.0);
        assert_eq!(ExactWeights::new(array![0.0, 0.0].view(), 0.0).recall([1].into_iter()), 1.0);
    }
}
