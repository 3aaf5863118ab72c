//! Copies of keys in 8 bits for each element, and proved bounds on the errors of their products.
//!
//! Let `k~` be the copy of a key `k`, and `r = |k − k~| + γ (|k| + |k~|)`. Then
//!
//! `|q·k − q·k~| ≤ |q| r`,
//!
//! with both products as computed in f32. The exact products differ by `q·(k − k~)`, and rounding
//! changes each by at most `γ Σ |q_c k_c| ≤ γ |q| |k|`, with `γ = u (d + 2) / (1 − u (d + 2))` for
//! `d` channels in any order of summation, where `u` is the unit roundoff (Higham, Accuracy and
//! Stability of Numerical Algorithms, 3.1).

use vattention_core::{Row, Tokens, step::PrefixMax};
use vattention_index::{LabelBits, Labels, Rounding};

/// Copies of the keys of one KV head in 8 bits.
#[derive(Clone, Debug)]
pub(super) struct KeyCopies {
    labels: Labels,
    /// `r` of each token, `[tokens]`.
    radii: Vec<f32>,
    /// Largest `r` of each prefix of the tokens.
    largest: PrefixMax,
}

/// Bounds on the differences of logits and scores: `|q| r` of each token, and the underflow.
#[derive(Debug)]
pub(super) struct KeyErrors<'a> {
    /// `r`, `[visible]`.
    pub(super) radii: &'a [f32],
    /// Largest `r`; infinite if any is NaN.
    pub(super) largest: f32,
    /// Upper bound on `|q|`.
    pub(super) query: f32,
    /// Upper bound on the error of a product through underflow.
    pub(super) underflow: f32,
}

impl KeyCopies {
    pub(super) fn new(head_dim: usize) -> Self {
        let bits = LabelBits::try_from(8).expect("a label has up to 8 bits");
        Self {
            labels: Labels::new(head_dim, bits),
            radii: Vec::new(),
            largest: PrefixMax::default(),
        }
    }

    pub(super) fn append(&mut self, keys: &Tokens<'_>) {
        let mut key = vec![0.0; keys.dim()];
        for token in 0..keys.len() {
            keys.copy_row(token, &mut key);
            self.push(&key);
        }
    }

    fn push(&mut self, key: &[f32]) {
        let token = self.labels.len();
        self.labels.push(key, Rounding::Nearest);
        let copy: Vec<f64> =
            (0..key.len()).map(|channel| f64::from(self.labels.get(token, channel))).collect();
        let key = || key.iter().copied().map(f64::from);
        let distance = norm(key().zip(&copy).map(|(k, copy)| k - copy));
        let unit = (copy.len() + 2) as f64 * f64::from(f32::EPSILON) / 2.0;
        let rounding = unit / (1.0 - unit) * (norm(key()) + norm(copy.iter().copied()));
        let radius = ((distance + rounding) as f32).next_up();
        self.radii.push(radius);
        self.largest.push(radius.into());
    }

    /// Writes approximate logits of the visible tokens to `out`. O(visible · head_dim).
    pub(super) fn score(&self, row: &Row<'_>, out: &mut [f32]) {
        let terms: Vec<_> = row.query().iter().copied().enumerate().collect();
        out.fill(0.0);
        self.labels.add_products(&terms, out);
    }

    pub(super) fn errors(&self, row: &Row<'_>) -> KeyErrors<'_> {
        let query = norm(row.query().iter().copied().map(f64::from)) as f32;
        KeyErrors {
            radii: &self.radii[..row.visible()],
            largest: self.largest.max_of_first(row.visible()) as f32,
            query: query.next_up(),
            underflow: row.query().len() as f32 * f32::MIN_POSITIVE,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.labels.bytes() + size_of_val(&self.radii[..])
    }
}

impl KeyErrors<'_> {
    /// Upper bound on the difference of a token's logit and score.
    pub(super) fn bound(&self, token: usize) -> f64 {
        f64::from(self.query) * f64::from(self.radii[token]) + f64::from(self.underflow)
    }
}

pub(super) fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|x| x * x).sum::<f64>().sqrt()
}
