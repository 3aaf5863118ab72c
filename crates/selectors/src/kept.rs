//! The tokens that an evicting selector still has.

use vattention_core::{NewTokens, Picks, plugin::Attended};

/// Tokens that were not evicted, ascending. What is gone stays gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptTokens {
    tokens: Vec<u32>,
    /// Tokens appended, evicted ones too.
    appended: usize,
}

impl KeptTokens {
    /// Has new tokens too.
    pub(crate) fn append(&mut self, new: &NewTokens<'_>) {
        self.appended = new.first + new.keys.len();
        self.tokens.extend((new.first..self.appended).map(|token| token as u32));
    }

    /// Those kept, ascending.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of those kept are before `token`.
    pub(crate) fn before(&self, token: usize) -> usize {
        self.tokens.partition_point(|&kept| (kept as usize) < token)
    }

    /// Evicts all but the best `best` of the first `old` kept, and those after them; lower tokens
    /// first among equals. `scores` are of the first `old`, `[old]`. Returns the places, among
    /// those kept so far, that stay. O(kept).
    pub(crate) fn evict(&mut self, old: usize, best: usize, scores: &[f32]) -> Picks {
        let mut stay = Picks::new(old);
        stay.take_top(best, scores);
        self.retain(&stay);
        stay
    }

    /// Evicts those of the first places that do not `stay`. O(kept).
    pub(crate) fn retain(&mut self, stay: &Picks) {
        keep(&mut self.tokens, stay.visible(), stay);
    }

    /// Takes those kept.
    pub(crate) fn take(&self, picks: &mut Picks) {
        if self.tokens.len() == self.appended {
            picks.take_range(0..self.appended);
        } else {
            picks.take_all(self.tokens.iter().map(|&token| token as usize));
        }
    }

    /// What the list takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.tokens[..])
    }
}

/// The weight of each token kept, 0 if it was not read, `[kept]`.
pub(crate) fn weights_of(kept: &[u32], attended: &Attended<'_>) -> Vec<f32> {
    let mut read = attended.tokens.iter().zip(attended.weights).peekable();
    let weight = |&token: &u32| {
        while read.next_if(|&(&other, _)| other < token).is_some() {}
        read.next_if(|&(&other, _)| other == token).map_or(0.0, |(_, &weight)| weight)
    };
    kept.iter().map(weight).collect()
}

/// Drops from the first `old` places of a list those that do not `stay`.
pub(crate) fn keep<T>(list: &mut Vec<T>, old: usize, stay: &Picks) {
    let mut place = 0..;
    list.retain(|_| place.next().is_some_and(|i| i >= old || stay.contains(i)));
}
