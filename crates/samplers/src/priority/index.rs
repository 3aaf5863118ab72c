//! What is kept of keys and values: 8 bits of each number of a key, and three numbers per token; of
//! values alone one.
//!
//! With `k~` what is kept of a key `k`, and `r = |k − k~| + γ (|k| + |k~|)`,
//!
//! `|q·k − q·k~| ≤ |q| r`,
//!
//! both products as they are computed in f32: the exact ones differ by `q·(k − k~)`, and each is
//! rounded by at most `γ Σ |q_c k_c| ≤ γ |q| |k|`, `γ = u (d + 2) / (1 − u (d + 2))` for `d` rounded
//! products in any order of summation (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).

use vattention_core::{NewTokens, Picks, Row};
use vattention_selectors::{LabelBits, Labels, Rounding};

use super::learned::Learned;

/// The index of one KV head.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Unless the selectors' scores are taken.
    keys: Option<Keys>,
    /// At least the norm of each value, and hardly more, `[tokens]`.
    norms: Vec<f32>,
}

/// Copies of the keys.
#[derive(Clone, Debug)]
struct Keys {
    labels: Labels,
    /// `r` of each token, `[tokens]`.
    errors: Vec<f32>,
}

/// What is known of one row, `[visible]` each.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    /// Approximate logits.
    pub(super) scores: Vec<f32>,
    /// At least the norms of the values.
    pub(super) norms: &'a [f32],
    errors: Errors<'a>,
}

/// How many deviations a logit may be above what a pilot foretells. Of scores that err normally, one token in
/// 740 is further above.
const DEVIATIONS: f64 = 3.0;

/// How far logits may be from scores.
#[derive(Debug)]
enum Errors<'a> {
    /// At the most: `r` of each token, the length of the query, and what is lost to underflow.
    Proved { of_keys: &'a [f32], query: f64, tiny: f64 },
    /// As a pilot shows them.
    Seen(f64),
}

impl Index {
    /// Of no tokens; with copies of the keys, or without.
    pub(super) fn new(head_dim: usize, keys: bool) -> Self {
        Self { keys: keys.then(|| Keys::new(head_dim)), norms: Vec::new() }
    }

    /// Whether it knows logits by itself.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    pub(super) fn append(&mut self, new: &NewTokens<'_>) {
        let (mut key, mut value) = (vec![0.0; new.keys.dim()], vec![0.0; new.values.dim()]);
        for token in 0..new.keys.len() {
            if let Some(keys) = &mut self.keys {
                new.keys.copy_row(token, &mut key);
                keys.push(&key);
            }
            new.values.copy_row(token, &mut value);
            self.norms.push((norm(value.iter().copied().map(f64::from)) as f32).next_up());
        }
    }

    /// Scores the tokens that a row may see, by its keys or as the selectors have. O(visible · head_dim),
    /// or O(visible).
    pub(super) fn scan(&self, row: &Row<'_>, picks: &Picks, pilot: &[usize]) -> Scan<'_> {
        let norms = &self.norms[..row.visible()];
        let (scores, errors) = if let Some(keys) = &self.keys {
            keys.scores(row)
        } else {
            let Learned { logits, deviation } = Learned::new(row, picks, pilot);
            (logits, Errors::Seen(DEVIATIONS * deviation))
        };
        Scan { scores, norms, errors }
    }

    pub(super) fn bytes(&self) -> usize {
        let keys = self.keys.as_ref();
        let keys = keys.map_or(0, |keys| keys.labels.bytes() + size_of_val(&keys.errors[..]));
        keys + size_of_val(&self.norms[..])
    }
}

impl Keys {
    fn new(head_dim: usize) -> Self {
        let bits = LabelBits::try_from(8).expect("a label has up to 8 bits");
        Self { labels: Labels::new(head_dim, bits), errors: Vec::new() }
    }

    fn push(&mut self, key: &[f32]) {
        let token = self.labels.len();
        self.labels.push(key, Rounding::Nearest);
        let kept: Vec<f64> =
            (0..key.len()).map(|channel| f64::from(self.labels.get(token, channel))).collect();
        let key = || key.iter().copied().map(f64::from);
        let lost = norm(key().zip(&kept).map(|(k, kept)| k - kept));
        let unit = (kept.len() + 2) as f64 * f64::from(f32::EPSILON) / 2.0;
        let rounded = unit / (1.0 - unit) * (norm(key()) + norm(kept.iter().copied()));
        self.errors.push(((lost + rounded) as f32).next_up());
    }

    fn scores(&self, row: &Row<'_>) -> (Vec<f32>, Errors<'_>) {
        let terms: Vec<_> = row.query().iter().copied().enumerate().collect();
        let mut scores = vec![0.0; row.visible()];
        self.labels.add_products(&terms, &mut scores);
        let errors = Errors::Proved {
            of_keys: &self.errors[..row.visible()],
            query: norm(row.query().iter().copied().map(f64::from)),
            tiny: terms.len() as f64 * f64::from(f32::MIN_POSITIVE),
        };
        (scores, errors)
    }
}

impl Scan<'_> {
    /// How far the logit of a token may be from its score.
    pub(super) fn error(&self, token: usize) -> f64 {
        match self.errors {
            Errors::Proved { of_keys, query, tiny } => query * f64::from(of_keys[token]) + tiny,
            Errors::Seen(error) => error,
        }
    }

    /// Whether that is proved.
    pub(super) fn is_proved(&self) -> bool {
        matches!(self.errors, Errors::Proved { .. })
    }
}

fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|x| x * x).sum::<f64>().sqrt()
}
