//! What is kept of keys and values: 8 bits of each number of a key, and three numbers per token.
//!
//! With `k~` what is kept of a key `k`, and `r = |k − k~| + γ (|k| + |k~|)`,
//!
//! `|q·k − q·k~| ≤ |q| r`,
//!
//! both products as they are computed in f32: the exact ones differ by `q·(k − k~)`, and each is
//! rounded by at most `γ Σ |q_c k_c| ≤ γ |q| |k|`, `γ = u (d + 2) / (1 − u (d + 2))` for `d` rounded
//! products in any order of summation (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).

use vattention_core::{NewTokens, Row};

use crate::labels::{LabelBits, Labels, Rounding};

/// The index of one KV head.
#[derive(Clone, Debug)]
pub(super) struct Index {
    labels: Labels,
    /// `r` of each token, `[tokens]`.
    errors: Vec<f32>,
    /// At least the norm of each value, and hardly more, `[tokens]`.
    norms: Vec<f32>,
}

/// What the index says of one row, `[visible]` each.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    /// Approximate logits.
    pub(super) scores: Vec<f32>,
    /// At least the norms of the values.
    pub(super) norms: &'a [f32],
    errors: &'a [f32],
    /// The length of the query.
    query: f64,
    /// What is lost to underflow.
    tiny: f64,
}

impl Index {
    /// Of no tokens.
    pub(super) fn new(head_dim: usize) -> Self {
        let bits = LabelBits::try_from(8).expect("a label has up to 8 bits");
        Self { labels: Labels::new(head_dim, bits), errors: Vec::new(), norms: Vec::new() }
    }

    pub(super) fn append(&mut self, new: &NewTokens<'_>) {
        let (mut key, mut value) = (vec![0.0; new.keys.dim()], vec![0.0; new.values.dim()]);
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            new.values.copy_row(token, &mut value);
            self.push(&key, &value);
        }
    }

    fn push(&mut self, key: &[f32], value: &[f32]) {
        let token = self.labels.len();
        self.labels.push(key, Rounding::Nearest);
        let kept: Vec<f64> =
            (0..key.len()).map(|channel| f64::from(self.labels.get(token, channel))).collect();
        let key = || key.iter().copied().map(f64::from);
        let lost = norm(key().zip(&kept).map(|(k, kept)| k - kept));
        let unit = (kept.len() + 2) as f64 * f64::from(f32::EPSILON) / 2.0;
        let rounded = unit / (1.0 - unit) * (norm(key()) + norm(kept.iter().copied()));
        self.errors.push(((lost + rounded) as f32).next_up());
        self.norms.push((norm(value.iter().copied().map(f64::from)) as f32).next_up());
    }

    /// Scores the tokens that a row may see. O(visible · head_dim).
    pub(super) fn scan(&self, row: &Row<'_>) -> Scan<'_> {
        let visible = row.visible();
        let terms: Vec<_> = row.query().iter().copied().enumerate().collect();
        let mut scores = vec![0.0; visible];
        self.labels.add_products(&terms, &mut scores);
        Scan {
            scores,
            norms: &self.norms[..visible],
            errors: &self.errors[..visible],
            query: norm(row.query().iter().copied().map(f64::from)),
            tiny: terms.len() as f64 * f64::from(f32::MIN_POSITIVE),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.labels.bytes() + size_of_val(&self.errors[..]) + size_of_val(&self.norms[..])
    }
}

impl Scan<'_> {
    /// How far the logit of a token may be from its score.
    pub(super) fn error(&self, token: usize) -> f64 {
        self.query * f64::from(self.errors[token]) + self.tiny
    }
}

fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|x| x * x).sum::<f64>().sqrt()
}
