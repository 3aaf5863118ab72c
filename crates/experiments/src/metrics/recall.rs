//! How much of the attention that could be had was had.

use ndarray::ArrayView1;

/// The attention of one row, by token.
#[derive(Clone, Debug)]
pub(crate) struct Attention(Vec<f32>);

impl Attention {
    /// Of `e / D`, `[visible]`. 4 bytes per token are kept.
    pub(crate) fn new(weights: ArrayView1<'_, f64>) -> Self {
        Self(weights.iter().map(|&weight| weight as f32).collect())
    }

    /// What the tokens hold, relative to what as many tokens could hold at most; 1 if there is none
    /// to miss.
    pub(crate) fn recall(&self, tokens: impl ExactSizeIterator<Item = usize>) -> f64 {
        let most = self.most(tokens.len());
        let held: f64 = tokens.map(|token| f64::from(self.0[token])).sum();
        if most == 0.0 { 1.0 } else { held / most }
    }

    /// What the `count` heaviest tokens hold.
    fn most(&self, count: usize) -> f64 {
        let mut weights = self.0.clone();
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

    #[test]
    fn recall_is_relative_to_the_best_of_as_many() {
        let attention = Attention::new(array![0.1, 0.4, 0.2, 0.3].view());
        let recall = |tokens: &[usize]| attention.recall(tokens.iter().copied());
        assert!((recall(&[1, 3]) - 1.0).abs() < 1e-6);
        assert!((recall(&[0, 3]) - 4.0 / 7.0).abs() < 1e-6);
        assert!((recall(&[0]) - 0.25).abs() < 1e-6);
        assert!((recall(&[0, 1, 2, 3]) - 1.0).abs() < 1e-6);
        assert_eq!(recall(&[]), 1.0);
        assert_eq!(Attention::new(array![0.0, 0.0].view()).recall([1].into_iter()), 1.0);
    }
}
