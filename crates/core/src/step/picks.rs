//! Tokens that selectors have picked for a row.

use std::ops::Range;
use std::sync::Arc;

use crate::step::{Rank, top};

/// Picks of a row: the tokens that selectors have picked, which are always read.
///
/// Selectors can only add tokens, and only visible ones. Picks are stored as one bit for each
/// visible token.
#[derive(Clone, Debug)]
pub struct Picks {
    /// A bit for each visible token, `[⌈visible / 64⌉]`, lower tokens in lower bits.
    taken: Vec<u64>,
    len: usize,
    visible: usize,
    bound: Option<f32>,
    scores: StoredScores,
}

/// Scores by which a selector has ranked the tokens.
#[derive(Clone, Debug)]
enum StoredScores {
    /// Scores are not needed.
    Ignored,
    /// Scores are needed, but no selector has provided any yet.
    Missing,
    /// Scores of the visible tokens, `[visible]`.
    Present(Arc<[f32]>),
}

impl Picks {
    /// Creates empty picks among `visible` tokens.
    pub fn new(visible: usize) -> Self {
        Self {
            taken: vec![0; visible.div_ceil(64)],
            len: 0,
            visible,
            bound: None,
            scores: StoredScores::Ignored,
        }
    }

    /// Makes the picks store the scores that are later passed to [`take_top`](Self::take_top) or
    /// [`set_scores`](Self::set_scores).
    pub fn store_scores(&mut self) {
        self.scores = StoredScores::Missing;
    }

    /// Provides the scores of the visible tokens, `[visible]`, where larger is better. Samplers may
    /// draw unpicked tokens by these scores. Scores of picked tokens are not used. Scores that
    /// predict the logits of one query head should be capped like these
    /// ([`SoftmaxForm::cap`](crate::SoftmaxForm::cap)).
    ///
    /// # Panics
    /// Panics if the number of scores is not the number of visible tokens.
    pub fn set_scores(&mut self, scores: impl IntoIterator<Item = f32>) {
        if !matches!(self.scores, StoredScores::Ignored) {
            let scores: Arc<[f32]> = scores.into_iter().collect();
            assert_eq!(scores.len(), self.visible, "one score for each visible token");
            self.scores = StoredScores::Present(scores);
        }
    }

    /// Scores that were provided last, `[visible]`, if scores are stored.
    pub fn scores(&self) -> Option<&[f32]> {
        if let StoredScores::Present(scores) = &self.scores { Some(scores) } else { None }
    }

    /// Picks a token, unless it is already picked or not visible.
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

    /// Picks the `k` best tokens that are not picked yet, the lower index first among equal scores.
    /// Returns the best score of the tokens that remain, or `None` if no token remains.
    ///
    /// `scores` are those of the visible tokens, `[visible]`, where larger is better and −0 equals
    /// 0. They must not be NaN. O(visible), without sorting.
    ///
    /// # Panics
    /// Panics if the number of scores is not the number of visible tokens.
    pub fn take_top<S: Rank>(&mut self, k: usize, scores: &[S]) -> Option<S> {
        assert_eq!(scores.len(), self.visible, "one score for each visible token");
        self.set_scores(scores.iter().map(|&score| score.into()));
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

    /// Adds the picks of `other`. A token's score becomes the larger of its two scores. The bound
    /// is removed, because it belongs to one row.
    ///
    /// # Panics
    /// Panics if `other` has a different number of visible tokens.
    pub fn union(&mut self, other: &Self) {
        assert_eq!(self.visible, other.visible, "picks of one step");
        for (word, &bits) in other.taken.iter().enumerate() {
            self.take_word(word, bits);
        }
        self.bound = None;
        self.scores = match (self.scores(), other.scores()) {
            (Some(ours), Some(theirs)) => {
                StoredScores::Present(ours.iter().zip(theirs).map(|(a, b)| a.max(*b)).collect())
            }
            (None, Some(_)) => other.scores.clone(),
            _ => return,
        };
    }

    /// Picks tokens of one word by their bits.
    fn take_word(&mut self, word: usize, bits: u64) {
        let new = bits & !self.taken[word];
        self.taken[word] |= new;
        self.len += new.count_ones() as usize;
    }

    /// Returns true if a token is picked.
    pub fn contains(&self, token: usize) -> bool {
        self.taken.get(token / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// Visible tokens that are not picked, ascending.
    pub fn residual(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.visible).filter(|&token| !self.contains(token))
    }

    /// Records a proof that the logit of no unpicked token exceeds `logit`. Only exact selectors
    /// can prove that, and only for the row that they were called with.
    pub fn bound_residual(&mut self, logit: f32) {
        self.bound = Some(self.bound.map_or(logit, |bound| bound.min(logit)));
    }

    /// Upper bound on the logits of unpicked tokens, if a selector proved one.
    pub fn residual_bound(&self) -> Option<f32> {
        self.bound
    }

    /// Number of picked tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no token is picked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of visible tokens, picked or not.
    pub fn visible(&self) -> usize {
        self.visible
    }

    /// A bit for each visible token, set if it is picked, `[⌈visible / 64⌉]`, lower tokens in
    /// lower bits.
    pub fn words(&self) -> &[u64] {
        &self.taken
    }

    /// Picked tokens, ascending, `[len]`.
    pub fn indices(&self) -> Vec<u32> {
        let mut indices = Vec::with_capacity(self.len);
        for (word, &bits) in self.taken.iter().enumerate() {
            top::for_each_bit(bits, |bit| indices.push((word * 64 + bit) as u32));
        }
        indices
    }

    /// Picked tokens, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.indices().into_iter().map(|token| token as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn visible_tokens_are_picked_once() {
        let mut picks = Picks::new(10);
        picks.take(4);
        picks.take_all([4, 7, 10, 11, 4000]);
        assert_eq!(picks.iter().collect::<Vec<_>>(), [4, 7]);
        picks.bound_residual(2.0);
        picks.bound_residual(3.0);
        assert_eq!(picks.residual_bound(), Some(2.0));
    }

    #[test]
    fn scores_of_the_last_top_k_are_stored() {
        let mut picks = Picks::new(3);
        picks.take_top(1, &[3.0, 1.0, 2.0]);
        assert!(picks.scores().is_none(), "scores are not stored by default");
        picks.store_scores();
        picks.take(0);
        assert!(picks.scores().is_none(), "no top-k yet");
        picks.take_top(1, &[0.0, 1.0, 2.0]);
        picks.take_top(1, &[7_u16, 8, 9]);
        assert_eq!(picks.clone().scores(), Some(&[7.0, 8.0, 9.0][..]));
    }

    #[test]
    fn a_union_has_no_bound_and_the_larger_scores() {
        let (mut all, mut other) = (Picks::new(3), Picks::new(3));
        for (picks, scores) in [(&mut all, [3.0, 1.0, 2.0]), (&mut other, [0.0, 1.5, 4.0])] {
            picks.store_scores();
            picks.take_top(1, &scores);
        }
        all.bound_residual(1.0);
        all.union(&other);
        assert_eq!(all.iter().collect::<Vec<_>>(), [0, 2]);
        assert!(all.residual_bound().is_none());
        assert_eq!(all.scores(), Some(&[3.0, 1.5, 4.0][..]));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Every visible token is either picked or in the residual (rule 3), however it was picked.
        #[test]
        fn all_methods_agree_on_the_picked_tokens(
            visible in 0usize..300,
            ranges in prop::collection::vec((0usize..320, 0usize..320), 0..4),
        ) {
            let (mut picks, mut separately) = (Picks::new(visible), Picks::new(visible));
            for (start, end) in ranges {
                picks.take_range(start..end);
                separately.take_all(start..end);
            }
            prop_assert_eq!(picks.words(), separately.words());
            let tokens: Vec<usize> = (0..visible).filter(|&token| picks.contains(token)).collect();
            prop_assert_eq!(picks.len(), tokens.len());
            prop_assert!(picks.indices().iter().map(|&token| token as usize).eq(tokens.clone()));
            prop_assert!(picks.iter().eq(tokens));
            prop_assert_eq!(picks.residual().count() + picks.len(), visible);
        }
    }
}
