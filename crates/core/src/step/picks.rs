//! The tokens that one row has picked so far.

use std::ops::Range;
use std::sync::Arc;

use crate::step::{
    Rank,
    top::{self},
};

/// One row's picks, which are always read.
///
/// Picks only grow: a later stage cannot remove an earlier one's. Tokens that the row may not see are
/// never in it. A bit for each visible token.
#[derive(Clone, Debug)]
pub struct Picks {
    /// A bit for each visible token, `[⌈visible / 64⌉]`, lower tokens in lower bits.
    taken: Vec<u64>,
    len: usize,
    visible: usize,
    bound: Option<f32>,
    scores: Scores,
}

/// The scores by which a selector has ranked the tokens.
#[derive(Clone, Debug)]
enum Scores {
    /// Nobody needs them.
    Unwanted,
    /// None so far.
    Wanted,
    /// `[visible]`
    Kept(Arc<[f32]>),
}

impl Picks {
    /// No picks among `visible` tokens.
    pub fn new(visible: usize) -> Self {
        Self {
            taken: vec![0; visible.div_ceil(64)],
            len: 0,
            visible,
            bound: None,
            scores: Scores::Unwanted,
        }
    }

    /// From now on stores the scores of every [`take_top`](Self::take_top), or those given to
    /// [`ranked_by`](Self::ranked_by).
    pub fn keep_scores(&mut self) {
        self.scores = Scores::Wanted;
    }

    /// Gives the scores of the visible tokens, `[visible]`, larger is better; those of earlier picks may be
    /// anything. Samplers may draw the others by these scores.
    ///
    /// # Panics
    /// If there are more or fewer scores than visible tokens.
    pub fn ranked_by(&mut self, scores: impl IntoIterator<Item = f32>) {
        if !matches!(self.scores, Scores::Unwanted) {
            let scores: Arc<[f32]> = scores.into_iter().collect();
            assert_eq!(scores.len(), self.visible, "one score for each visible token");
            self.scores = Scores::Kept(scores);
        }
    }

    /// The last scores, `[visible]`, if they were stored.
    pub fn scores(&self) -> Option<&[f32]> {
        if let Scores::Kept(scores) = &self.scores { Some(scores) } else { None }
    }

    /// Picks a token. Nothing happens if it is already picked or not visible.
    pub fn take(&mut self, token: usize) {
        if token < self.visible {
            self.take_word(token / 64, 1 << (token % 64));
        }
    }

    /// Picks tokens; see [`take`](Self::take).
    pub fn take_all(&mut self, tokens: impl IntoIterator<Item = usize>) {
        tokens.into_iter().for_each(|token| self.take(token));
    }

    /// Picks a range of tokens; see [`take`](Self::take). O(range / 64).
    pub fn take_range(&mut self, tokens: Range<usize>) {
        let end = tokens.end.min(self.visible);
        let mut start = tokens.start;
        while start < end {
            let (word, next) = (start / 64, end.min((start / 64 + 1) * 64));
            let bits = u64::MAX >> (64 - (next - start));
            self.take_word(word, bits << (start % 64));
            start = next;
        }
    }

    /// Picks the `k` best tokens not picked yet, lower index first among equals, and returns the
    /// best score left over, `None` if nothing is left.
    ///
    /// `scores` are of the visible tokens, `[visible]`, larger is better, −0 and 0 are equal, and
    /// none is NaN. O(visible), without sorting.
    ///
    /// # Panics
    /// If there are more or fewer scores than visible tokens.
    pub fn take_top<S: Rank>(&mut self, k: usize, scores: &[S]) -> Option<S> {
        assert_eq!(scores.len(), self.visible, "one score for each visible token");
        self.ranked_by(scores.iter().map(|&score| score.into()));
        if k >= self.visible - self.len {
            self.take_range(0..self.visible);
            return None;
        }
        let cut = S::cut(scores, &self.taken, k);
        if let Some((least, equals)) = cut.least {
            top::mark(scores, least, equals, &mut self.taken);
            self.len += k;
        }
        Some(cut.next)
    }

    /// Picks every token of `other`, which sees as many tokens. Of a token's two scores the larger is
    /// kept; no bound is kept, as it belongs to one row.
    ///
    /// # Panics
    /// If it sees more or fewer tokens.
    pub fn union(&mut self, other: &Self) {
        assert_eq!(self.visible, other.visible, "picks of one step");
        for (word, &bits) in other.taken.iter().enumerate() {
            self.take_word(word, bits);
        }
        self.bound = None;
        self.scores = match (self.scores(), other.scores()) {
            (Some(ours), Some(theirs)) => {
                Scores::Kept(ours.iter().zip(theirs).map(|(a, b)| a.max(*b)).collect())
            }
            (None, Some(_)) => other.scores.clone(),
            _ => return,
        };
    }

    fn take_word(&mut self, word: usize, bits: u64) {
        let new = bits & !self.taken[word];
        self.taken[word] |= new;
        self.len += new.count_ones() as usize;
    }

    /// Whether a token is picked.
    pub fn contains(&self, token: usize) -> bool {
        self.taken.get(token / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// The tokens not picked, ascending.
    pub fn residual(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.visible).filter(|&token| !self.contains(token))
    }

    /// Proves that no unpicked token's logit exceeds `logit`. Only an exact selector can; it holds
    /// for the row it was called with.
    pub fn bound_residual(&mut self, logit: f32) {
        self.bound = Some(self.bound.map_or(logit, |bound| bound.min(logit)));
    }

    /// The proved bound on unpicked logits, if a selector gave one.
    pub fn residual_bound(&self) -> Option<f32> {
        self.bound
    }

    /// Tokens picked.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is picked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens that the row sees, picked or not.
    pub fn visible(&self) -> usize {
        self.visible
    }

    /// A bit for each visible token, set if it is picked, `[⌈visible / 64⌉]`, lower tokens in
    /// lower bits.
    pub fn words(&self) -> &[u64] {
        &self.taken
    }

    /// The tokens picked, ascending, `[len]`.
    pub fn indices(&self) -> Vec<u32> {
        let mut indices = Vec::with_capacity(self.len);
        for (word, &bits) in self.taken.iter().enumerate() {
            top::each_bit(bits, |bit| indices.push((word * 64 + bit) as u32));
        }
        indices
    }

    /// The tokens picked, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.indices().into_iter().map(|token| token as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_is_held_once_if_it_is_visible() {
        let mut picks = Picks::new(10);
        picks.take(4);
        picks.take_all([4, 7, 10, 11, 4000]);
        assert_eq!(picks.iter().collect::<Vec<_>>(), [4, 7]);
        picks.bound_residual(2.0);
        picks.bound_residual(3.0);
        assert_eq!(picks.residual_bound(), Some(2.0));
    }

    #[test]
    fn scores_are_those_of_the_last_top_k() {
        let mut picks = Picks::new(3);
        picks.take_top(1, &[3.0, 1.0, 2.0]);
        assert!(picks.scores().is_none(), "nobody asked");
        picks.keep_scores();
        picks.take(0);
        assert!(picks.scores().is_none(), "no top-k yet");
        picks.take_top(1, &[0.0, 1.0, 2.0]);
        picks.take_top(1, &[7_u16, 8, 9]);
        assert_eq!(picks.clone().scores(), Some(&[7.0, 8.0, 9.0][..]));
    }

    #[test]
    fn a_union_bounds_nothing_and_ranks_a_token_by_its_best_score() {
        let (mut all, mut other) = (Picks::new(3), Picks::new(3));
        for (picks, scores) in [(&mut all, [3.0, 1.0, 2.0]), (&mut other, [0.0, 1.5, 4.0])] {
            picks.keep_scores();
            picks.take_top(1, &scores);
        }
        all.bound_residual(1.0);
        all.union(&other);
        assert_eq!(all.iter().collect::<Vec<_>>(), [0, 2]);
        assert!(all.residual_bound().is_none());
        assert_eq!(all.scores(), Some(&[3.0, 1.5, 4.0][..]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// The picks and the residual (rule 3) part the visible tokens, however they were taken.
        #[test]
        fn every_view_shows_the_same_tokens(
            visible in 0usize..300,
            ranges in prop::collection::vec((0usize..320, 0usize..320), 0..4),
        ) {
            let (mut picks, mut one_by_one) = (Picks::new(visible), Picks::new(visible));
            for (start, end) in ranges {
                picks.take_range(start..end);
                one_by_one.take_all(start..end);
            }
            prop_assert_eq!(picks.words(), one_by_one.words());
            let tokens: Vec<usize> = (0..visible).filter(|&token| picks.contains(token)).collect();
            prop_assert_eq!(picks.len(), tokens.len());
            prop_assert!(picks.indices().iter().map(|&token| token as usize).eq(tokens.clone()));
            prop_assert!(picks.iter().eq(tokens));
            prop_assert_eq!(picks.residual().count() + picks.len(), visible);
        }
    }
}
