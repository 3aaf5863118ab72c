//! In which of the last rows a token was low.

use vattention_core::Picks;

use crate::kept::keep;

/// For each token kept one bit for each of the last `rows` rows.
#[derive(Clone, Debug)]
pub(super) struct History {
    rows: usize,
    /// The place of the next row.
    next: usize,
    tokens: Vec<Box<[u64]>>,
}

impl History {
    /// No tokens, and no rows yet.
    pub(super) fn new(rows: usize) -> Self {
        Self { rows, next: 0, tokens: Vec::new() }
    }

    /// Of so many tokens: new ones were never low.
    pub(super) fn resize(&mut self, tokens: usize) {
        let never = || vec![0; self.rows.div_ceil(64)].into_boxed_slice();
        self.tokens.resize_with(tokens, never);
    }

    /// Adds a row in place of the oldest: whether each of the first tokens was low. The others were not.
    pub(super) fn add(&mut self, low: impl Iterator<Item = bool>) {
        let (word, bit) = (self.next / 64, self.next % 64);
        let low = low.chain(std::iter::repeat(false));
        for (rows, low) in self.tokens.iter_mut().zip(low) {
            rows[word] = rows[word] & !(1 << bit) | u64::from(low) << bit;
        }
        self.next = (self.next + 1) % self.rows;
    }

    /// In how many of the last rows a token was low.
    pub(super) fn count(&self, place: usize) -> u32 {
        self.tokens[place].iter().map(|word| word.count_ones()).sum()
    }

    /// Drops from the first `old` tokens those that do not `stay`.
    pub(super) fn keep(&mut self, old: usize, stay: &Picks) {
        keep(&mut self.tokens, old, stay);
    }

    /// Bytes of the rows.
    pub(super) fn bytes(&self) -> usize {
        self.tokens.iter().map(|rows| size_of_val(&rows[..])).sum()
    }
}
