//! The tokens that one row has picked so far.

/// One row's picks, with inclusion probabilities.
///
/// Picks only grow, and hold a token once: a later stage cannot break what an earlier one chose,
/// and there is no rule for merging two probabilities to get wrong. Tokens that the row may not
/// see are never in it.
#[derive(Clone, Debug)]
pub struct Picks {
    taken: Vec<u64>,
    tokens: Vec<u32>,
    probabilities: Vec<f32>,
    visible: usize,
    bound: Option<f32>,
}

impl Picks {
    /// No picks among `visible` tokens.
    pub fn new(visible: usize) -> Self {
        Self {
            taken: vec![0; visible.div_ceil(64)],
            tokens: Vec::new(),
            probabilities: Vec::new(),
            visible,
            bound: None,
        }
    }

    /// Picks a token for certain. Nothing happens if it is picked already or not visible.
    pub fn take(&mut self, token: usize) {
        self.draw(token, 1.0);
    }

    /// Picks tokens for certain; see [`take`](Self::take).
    pub fn take_all(&mut self, tokens: impl IntoIterator<Item = usize>) {
        tokens.into_iter().for_each(|token| self.take(token));
    }

    /// Picks the `k` best tokens not picked yet, lower index first among equals, and returns the
    /// best score left over, `None` if nothing is left.
    ///
    /// Calls `score` once for each token not picked; −0 and 0 are equal. O(residual).
    pub fn take_top(&mut self, k: usize, score: impl Fn(usize) -> f32) -> Option<f32> {
        let mut rest: Vec<(f32, u32)> =
            self.residual().map(|token| (score(token) + 0.0, token as u32)).collect();
        if k < rest.len() {
            rest.select_nth_unstable_by(k, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        let left = rest.get(k).map(|&(score, _)| score);
        rest.truncate(k);
        self.take_all(rest.into_iter().map(|(_, token)| token as usize));
        left
    }

    /// Picks a token that was drawn with probability `p` in (0, 1].
    ///
    /// Nothing happens if the token is picked already or not visible, or if `p` is not positive.
    /// A `p` above 1 counts as 1.
    pub fn draw(&mut self, token: usize, p: f32) {
        if p > 0.0 && token < self.visible && !self.contains(token) {
            self.taken[token / 64] |= 1 << (token % 64);
            self.tokens.push(token as u32);
            self.probabilities.push(p.min(1.0));
        }
    }

    /// Whether a token is picked.
    pub fn contains(&self, token: usize) -> bool {
        self.taken.get(token / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// The tokens not picked, in order.
    pub fn residual(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.visible).filter(|&token| !self.contains(token))
    }

    /// Promises that no untaken token's logit exceeds `logit`. Only an exact selector can; it
    /// holds for the row it was called with.
    pub fn bound_residual(&mut self, logit: f32) {
        self.bound = Some(self.bound.map_or(logit, |bound| bound.min(logit)));
    }

    /// The promised bound on untaken logits, if a selector gave one.
    pub fn residual_bound(&self) -> Option<f32> {
        self.bound
    }

    /// Tokens picked.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is picked.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens that the row may see, picked or not.
    pub fn visible(&self) -> usize {
        self.visible
    }

    /// Whether all picks are certain.
    pub fn is_certain(&self) -> bool {
        self.probabilities.iter().all(|&p| p == 1.0)
    }

    /// The tokens, ascending.
    pub fn indices(&self) -> Vec<u32> {
        self.sorted().into_iter().map(|(token, _)| token as u32).collect()
    }

    /// `(token, inclusion probability)` in the order picked.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        self.tokens.iter().map(|&token| token as usize).zip(self.probabilities.iter().copied())
    }

    /// `(token, inclusion probability)` by token.
    pub fn sorted(&self) -> Vec<(usize, f32)> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_unstable_by_key(|&(token, _)| token);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(picks: &Picks) -> Vec<usize> {
        picks.iter().map(|(token, _)| token).collect()
    }

    /// Rule 1: lower token index first among equals; rule 2: `k` tokens among those not yet taken.
    #[test]
    fn ties_go_to_the_lower_token() {
        let mut picks = Picks::new(100);
        picks.take(3);
        let left = picks.take_top(5, |token| if token == 50 { 2.0 } else { 1.0 });
        let mut got = tokens(&picks);
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3, 4, 50]);
        assert_eq!(left, Some(1.0));
        assert_eq!(Picks::new(4).take_top(9, |_| 0.0), None);
    }

    #[test]
    fn a_token_is_held_once_and_keeps_its_first_probability() {
        let mut picks = Picks::new(10);
        picks.draw(4, 0.25);
        picks.take(4);
        picks.draw(4, 0.5);
        picks.take_all([10, 11, 4000]);
        picks.draw(5, 0.0);
        picks.draw(6, f32::NAN);
        picks.draw(7, 3.0);
        assert_eq!(picks.iter().collect::<Vec<_>>(), [(4, 0.25), (7, 1.0)]);
        picks.bound_residual(2.0);
        picks.bound_residual(3.0);
        assert_eq!(picks.residual_bound(), Some(2.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// The picks and the residual (rule 3) part the visible tokens; top-k is a sort.
        #[test]
        fn top_k_is_what_a_sort_gives(scores in prop::collection::vec(-3i8..4, 0..150), k in 0usize..160, first in 0usize..20) {
            let mut picks = Picks::new(scores.len());
            picks.take_all(0..first);
            let mut rest: Vec<usize> = picks.residual().collect();
            prop_assert_eq!(rest.len() + picks.len(), scores.len());
            rest.sort_by_key(|&token| -scores[token]);
            let left = picks.take_top(k, |token| f32::from(scores[token]));
            prop_assert_eq!(left, rest.get(k).map(|&token| f32::from(scores[token])));
            let mut want: Vec<usize> = (0..first.min(scores.len())).chain(rest.into_iter().take(k)).collect();
            want.sort_unstable();
            let got: Vec<usize> = picks.sorted().into_iter().map(|(token, _)| token).collect();
            prop_assert_eq!(got, want);
        }
    }
}
