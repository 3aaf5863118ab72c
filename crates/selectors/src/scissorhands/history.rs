//! History of the last rows in which a token was low.

use vattention_core::Picks;

use crate::kept_tokens::retain_places;

/// One bit per kept token and row, for the last `rows` rows.
#[derive(Clone, Debug)]
pub(super) struct History {
    rows: usize,
    /// Place of the next row.
    next: usize,
    tokens: Vec<Box<[u64]>>,
}

impl History {
    /// Creates a history without tokens and rows.
    pub(super) fn new(rows: usize) -> Self {
        Self { rows, next: 0, tokens: Vec::new() }
    }

    /// Sets the number of tokens. New tokens were never low.
    pub(super) fn resize(&mut self, tokens: usize) {
        let never = || vec![0; self.rows.div_ceil(64)].into_boxed_slice();
        self.tokens.resize_with(tokens, never);
    }

    /// Replaces the oldest row by a new one. `low` is true for each of the first tokens that is
    /// low; the others are not.
    pub(super) fn add(&mut self, low: impl Iterator<Item = bool>) {
        let (word, bit) = (self.next / 64, self.next % 64);
        let low = low.chain(std::iter::repeat(false));
        for (rows, low) in self.tokens.iter_mut().zip(low) {
            rows[word] = rows[word] & !(1 << bit) | u64::from(low) << bit;
        }
        self.next = (self.next + 1) % self.rows;
    }

    /// Number of the recorded rows in which a token was low.
    pub(super) fn count(&self, place: usize) -> u32 {
        self.tokens[place].iter().map(|word| word.count_ones()).sum()
    }

    /// Drops those of the first `old` tokens whose places `stay` does not contain.
    pub(super) fn retain(&mut self, old: usize, stay: &Picks) {
        retain_places(&mut self.tokens, old, stay);
    }

    /// Size of the rows in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.tokens.iter().map(|rows| size_of_val(&rows[..])).sum()
    }
}
