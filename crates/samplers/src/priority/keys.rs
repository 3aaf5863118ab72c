//! Approximate logits with proved bounds on their errors: products with keys of 8 bits.
//!
//! If the stored keys have 8 bits, the logits are products with them; otherwise copies of the keys
//! are rounded to 8 bits. Let `k~` be the copy of a key `k`, or `k` itself, and
//! `r = |k − k~| + γ (|k| + |k~|)`. Then
//!
//! `|q·k − q·k~| ≤ |q| r`,
//!
//! with both products as computed in f32. The exact products differ by `q·(k − k~)`, and rounding
//! changes each by at most `γ Σ |q_c k_c| ≤ γ |q| |k|`, with `γ = u (d + 2) / (1 − u (d + 2))` for
//! `d` channels in any order of summation, where `u` is the unit roundoff (Higham, Accuracy and
//! Stability of Numerical Algorithms, 3.1).
//!
//! For stored keys of 8 bits, a backend may round a query to integers up to `m`, which changes the
//! product by at most `max |q_c| / m · Σ |k_c| ≤ |q| √d |k| / m`. This is added to `r`.

use vattention_core::{
    Row, Tokens,
    step::{PrefixMax, StoredRows, largest_query_integer},
};
use vattention_index::{LabelBits, Labels, Rounding};

/// Keys of one KV head in 8 bits.
#[derive(Clone, Debug)]
pub(super) struct RoundedKeys {
    /// Copies of the keys; without items if the stored keys have 8 bits.
    copies: Labels,
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

impl RoundedKeys {
    pub(super) fn new(head_dim: usize) -> Self {
        let bits = LabelBits::try_from(8).expect("a label has up to 8 bits");
        Self {
            copies: Labels::new(head_dim, bits),
            radii: Vec::new(),
            largest: PrefixMax::default(),
        }
    }

    pub(super) fn append(&mut self, keys: &Tokens<'_>) {
        let are_stored = matches!(keys.stored().0, StoredRows::Q8(..));
        let mut key = vec![0.0; keys.dim()];
        for token in 0..keys.len() {
            keys.copy_row(token, &mut key);
            let radius = if are_stored { stored_radius(&key) } else { self.copy(&key) };
            let radius = (radius as f32).next_up();
            self.radii.push(radius);
            self.largest.push(radius.into());
        }
    }

    /// Removes all but the first `tokens` keys.
    pub(super) fn truncate(&mut self, tokens: usize) {
        if !self.copies.is_empty() {
            self.copies.truncate(tokens);
        }
        self.radii.truncate(tokens);
        self.largest.truncate(tokens);
    }

    /// Moves the copies to memory that later clones share. Clones copy the radii, which are 4 bytes
    /// per token.
    pub(super) fn share(&mut self) {
        self.copies.share();
    }

    /// Adds a copy of a key, and returns its `r`.
    fn copy(&mut self, key: &[f32]) -> f64 {
        let token = self.copies.len();
        self.copies.push(key, Rounding::Nearest);
        let copy: Vec<f64> =
            (0..key.len()).map(|channel| f64::from(self.copies.get(token, channel))).collect();
        let key = || key.iter().copied().map(f64::from);
        let distance = norm(key().zip(&copy).map(|(k, copy)| k - copy));
        distance + gamma(copy.len()) * (norm(key()) + norm(copy.iter().copied()))
    }

    /// Writes approximate logits of the visible tokens to `out`. O(visible · head_dim).
    pub(super) fn score(&self, row: &Row<'_>, out: &mut [f32]) {
        if self.copies.is_empty() {
            return row.keys().dots(0..row.visible(), row.query(), out);
        }
        let terms: Vec<_> = row.query().iter().copied().enumerate().collect();
        out.fill(0.0);
        self.copies.add_products(&terms, out);
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
        self.copies.bytes() + size_of_val(&self.radii[..])
    }
}

impl KeyErrors<'_> {
    /// Upper bound on the difference of a token's logit and score.
    pub(super) fn bound(&self, token: usize) -> f64 {
        f64::from(self.query) * f64::from(self.radii[token]) + f64::from(self.underflow)
    }
}

/// `r` of a stored key of 8 bits.
fn stored_radius(key: &[f32]) -> f64 {
    let largest = f64::from(largest_query_integer(key.len()));
    let query_rounding = (key.len() as f64).sqrt() / largest;
    (2.0 * gamma(key.len()) + query_rounding) * norm(key.iter().copied().map(f64::from))
}

/// `γ` for `dim` channels.
fn gamma(dim: usize) -> f64 {
    let unit = (dim + 2) as f64 * f64::from(f32::EPSILON) / 2.0;
    unit / (1.0 - unit)
}

pub(super) fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|x| x * x).sum::<f64>().sqrt()
}
