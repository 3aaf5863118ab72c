//! Tokens that an evicting selector still keeps.

use vattention_core::{NewTokens, Picks, plugin::AttentionWeights};

/// Tokens that were not evicted, ascending. An evicted token never comes back.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptTokens {
    tokens: Vec<u32>,
    /// Number of tokens appended, evicted ones included.
    appended: usize,
}

impl KeptTokens {
    /// Appends new tokens.
    pub(crate) fn append(&mut self, new: &NewTokens<'_>) {
        self.appended = new.first + new.keys.len();
        self.tokens.extend((new.first..self.appended).map(|token| token as u32));
    }

    /// Removes all but the first `tokens` tokens. No token may have been evicted since the last one
    /// of these was appended.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(self.before(tokens));
        self.appended = tokens;
    }

    /// Returns the kept tokens, ascending.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of kept tokens before `token`.
    pub(crate) fn before(&self, token: usize) -> usize {
        self.tokens.partition_point(|&kept| (kept as usize) < token)
    }

    /// Evicts all but the `best` tokens of highest score among the first `old` kept tokens, by
    /// `scores` `[old]`; ties go to the lower token. Kept tokens after the first `old` stay.
    /// Returns the places that stay among the first `old`. O(kept).
    pub(crate) fn evict(&mut self, old: usize, best: usize, scores: &[f32]) -> Picks {
        let mut stay = Picks::new(old);
        stay.take_top(best, scores);
        self.retain(&stay);
        stay
    }

    /// Evicts those of the first `stay.visible()` places that `stay` does not contain. O(kept).
    pub(crate) fn retain(&mut self, stay: &Picks) {
        retain_places(&mut self.tokens, stay.visible(), stay);
    }

    /// Adds the kept tokens to `picks`.
    pub(crate) fn take(&self, picks: &mut Picks) {
        if self.tokens.len() == self.appended {
            picks.take_range(0..self.appended);
        } else {
            picks.take_all(self.tokens.iter().map(|&token| token as usize));
        }
    }

    /// Size of the list in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.tokens[..])
    }
}

/// Returns the attention weight of each kept token, 0 if it was not read, `[kept]`.
pub(crate) fn align_weights(kept: &[u32], attended: &AttentionWeights<'_>) -> Vec<f32> {
    let mut read = attended.tokens.iter().zip(attended.weights).peekable();
    let weight = |&token: &u32| {
        while read.next_if(|&(&other, _)| other < token).is_some() {}
        read.next_if(|&(&other, _)| other == token).map_or(0.0, |(_, &weight)| weight)
    };
    kept.iter().map(weight).collect()
}

/// Drops those of the first `old` elements of a list whose places `stay` does not contain.
pub(crate) fn retain_places<T>(list: &mut Vec<T>, old: usize, stay: &Picks) {
    let mut place = 0..;
    list.retain(|_| place.next().is_some_and(|i| i >= old || stay.contains(i)));
}
