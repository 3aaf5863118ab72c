//! `twilight`: among the picks of another selector, the fewest tokens that hold a given share of
//! the attention.
//!
//! The other selector, `of`, picks candidates. Candidates are picked by falling attention until
//! their share of the candidates' attention exceeds `mass`; ties go to the lower index. Neither
//! tokens picked by earlier selectors, nor tokens left over by `of`, nor an attention sink that the
//! model has learned are candidates, so that `mass` does not refer to all attention.
//!
//! Cost: that of the other selector, O(candidates · head_dim) to read their keys, and a sort of the
//! candidates whose share is close to the smallest picked one. The authors weigh candidates by a
//! 4-bit copy of the keys, 64 bytes per token plus scales, which saves three quarters of these
//! reads; here the weights are exact, and there is no copy. The authors read layers 0 and 1
//! densely, for which there is the setting `dense_layers`.
//!
//! # Guarantee
//! The share of the candidates' attention is exact. The scores by which the other selector ranks
//! all tokens are passed on to samplers that draw by scores. The other tokens are not bounded, so
//! that an estimator after the selector depends on its sample to reveal the heavy tokens that the
//! other selector misses.
//!
//! With `score = "group"` a token's attention is summed over the query heads of the KV head, where
//! each head's attention sums to 1.
//!
//! Lin et al. (2025), "Twilight: Adaptive Attention Sparsity with Hierarchical Top-p Pruning",
//! <https://arxiv.org/abs/2502.02770>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Tokens,
    plugin::{AttentionWeights, PromptQueries, Tunable},
    register,
    step::Score,
    typetag,
};

use crate::top_p::{AttentionShares, TopP};

/// Fewest tokens among another selector's picks that hold more than `mass` of the attention over
/// these picks.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Twilight {
    /// Share of the candidates' attention to exceed.
    pub mass: Fraction,
    /// Attention to rank by: each query head's own, or the sum over its group.
    #[serde(default)]
    pub score: Score,
    /// Selector that picks the candidates.
    pub of: Box<dyn SelectorConfig>,
}

#[typetag::serde(name = "twilight")]
impl SelectorConfig for Twilight {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let inner = self.of.build(site)?;
        Ok(Box::new(TwilightSelector { mass: self.mass, score: self.score, inner }))
    }

    fn check(&self) -> Result<()> {
        self.of.check()
    }

    fn needs_classes(&self) -> bool {
        self.of.needs_classes()
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Mass(&mut self.mass))
    }

    fn is_rotation_invariant(&self) -> bool {
        self.of.is_rotation_invariant()
    }
}

#[derive(Clone)]
struct TwilightSelector {
    mass: Fraction,
    score: Score,
    inner: Box<dyn Selector>,
}

impl Selector for TwilightSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.inner.append(new);
    }

    fn can_truncate(&self) -> bool {
        self.inner.can_truncate()
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.inner.truncate(keys);
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        self.inner.sharing_obstacle()
    }

    fn share(&mut self) {
        self.inner.share();
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        self.inner.observe(prompt);
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        self.inner.feedback(row, attended);
    }

    fn needs_feedback(&self) -> bool {
        self.inner.needs_feedback()
    }

    fn needs_prompt(&self) -> bool {
        self.inner.needs_prompt()
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group && self.inner.group_wide()
    }

    fn index_bytes(&self) -> usize {
        self.inner.index_bytes()
    }

    fn live(&self, live: &mut Picks) {
        self.inner.live(live);
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Mass(&mut self.mass))
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let mut all = picks.clone();
        self.inner.select(row, &mut all);
        if let Some(scores) = all.scores() {
            picks.set_scores(scores.iter().copied());
        }
        let all = all.indices().into_iter().map(|token| token as usize);
        let candidates: Vec<usize> = all.filter(|&token| !picks.contains(token)).collect();
        let shares = AttentionShares::new(row, self.score, false, |row| row.logits_of(&candidates));
        let enough = self.mass.get() * shares.total();
        picks.take_all(TopP::new(&candidates, &shares.tokens, 0.0, enough).taken);
    }
}

register!(
    Selector,
    "twilight",
    Twilight,
    "among another selector's picks, the fewest tokens that hold a share of the attention"
);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use vattention_core::Size;
    use vattention_testkit::{Head, Texture, heads};

    use super::*;
    use crate::{HashAttention, IndexScope, MassScope, OracleTopK, OracleTopP};

    fn config(mass: f64, score: Score, of: impl SelectorConfig + 'static) -> Twilight {
        let of: Box<dyn SelectorConfig> = Box::new(of);
        let mass = Fraction::try_from(mass).unwrap();
        Twilight { mass, score, of }
    }

    fn hashes(size: usize, score: Score) -> HashAttention {
        HashAttention {
            size: Size::Tokens(size),
            weights: None,
            bits: None,
            codes: IndexScope::Group,
            activation: serde_json::from_str("\"silu\"").unwrap(),
            score,
        }
    }

    fn nested() -> Twilight {
        config(0.6, Score::Head, config(0.9, Score::Group, hashes(40, Score::Group)))
    }

    vattention_testkit::laws!(head_scores, config(0.7, Score::Head, hashes(20, Score::Head)));
    vattention_testkit::laws!(group_scores, config(0.7, Score::Group, hashes(20, Score::Group)));
    vattention_testkit::laws!(
        group_scores_over_head_scores,
        config(0.7, Score::Group, hashes(20, Score::Head))
    );
    vattention_testkit::laws!(nested_twice, nested());

    /// Returns the tokens that a config adds for a row where every third token was picked before.
    fn pick_new(config: &dyn SelectorConfig, head: &Head) -> Vec<usize> {
        let mut selector = config.build(head.site()).unwrap();
        selector.append(&head.part(0..head.tokens));
        let mut picks = Picks::new(head.tokens);
        picks.take_all((0..head.tokens).step_by(3));
        let before = picks.clone();
        selector.select(&head.step(head.tokens).row(1), &mut picks);
        assert!(picks.residual_bound().is_none());
        before.residual().filter(|&token| picks.contains(token)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// The picks are candidates; they hold more than the mass, and without the lightest pick
        /// they do not.
        #[test]
        fn the_picks_are_the_fewest_candidates_that_hold_the_mass(
            head in heads(150), size in 1_usize..60, mass in 0.05..0.95,
        ) {
            let candidates = pick_new(&hashes(size, Score::Head), &head);
            let picked = pick_new(&config(mass, Score::Head, hashes(size, Score::Head)), &head);
            prop_assert!(picked.iter().all(|token| candidates.contains(token)));
            let row = head.step(head.tokens).row(1);
            let logit = |token: &usize| f64::from(row.logit(*token));
            let shift = candidates.iter().map(logit).fold(f64::NEG_INFINITY, f64::max);
            let weight = |token: &usize| (logit(token) - shift).exp();
            let total: f64 = candidates.iter().map(weight).sum();
            let covered: f64 = picked.iter().map(weight).sum();
            let lightest = picked.iter().map(weight).fold(f64::INFINITY, f64::min);
            prop_assert!(covered > (mass - 1e-6) * total || picked == candidates);
            prop_assert!(picked.is_empty() || covered - lightest <= (mass + 1e-6) * total);
            let heaviest_left = candidates.iter().filter(|token| !picked.contains(token))
                .map(weight).fold(0.0, f64::max);
            prop_assert!(heaviest_left <= lightest);
        }

        /// With a larger mass, all tokens are picked that a smaller mass picks. A mass of nearly 1
        /// picks all candidates of a flat head.
        #[test]
        fn more_mass_picks_more(head in heads(150), a in 0.05..0.95, b in 0.05..0.95) {
            let hashes = || hashes(30, Score::Head);
            let picked = |mass| pick_new(&config(mass, Score::Group, hashes()), &head);
            let (few, many) = (picked(f64::min(a, b)), picked(f64::max(a, b)));
            prop_assert!(few.iter().all(|token| many.contains(token)));
            if head.texture == Texture::Flat {
                prop_assert_eq!(picked(0.999_999), pick_new(&hashes(), &head));
            }
        }

        /// If all tokens are candidates, the picks are those of `oracle-top-p`.
        #[test]
        fn all_tokens_as_candidates_give_oracle_top_p(head in heads(150), mass in 0.05..0.95) {
            let all = || OracleTopK { size: Size::Tokens(1000), score: Score::Head };
            for score in [Score::Head, Score::Group] {
                let mass = Fraction::try_from(mass).unwrap();
                let oracle = OracleTopP { mass, of: MassScope::Residual, score };
                let mut selector = oracle.build(head.site()).unwrap();
                selector.append(&head.part(0..head.tokens));
                let mut picks = Picks::new(head.tokens);
                picks.take_all((0..head.tokens).step_by(3));
                let before = picks.clone();
                selector.select(&head.step(head.tokens).row(1), &mut picks);
                let want: Vec<usize> = before.residual().filter(|&t| picks.contains(t)).collect();
                prop_assert_eq!(pick_new(&config(mass.get(), score, all()), &head), want);
            }
        }
    }

    #[test]
    fn samplers_receive_the_other_selectors_scores() {
        let head = Head::new(100, 8, 1, Texture::Gaussian);
        let row = head.step(100).row(1);
        let scores = |config: &dyn SelectorConfig| {
            let mut selector = config.build(head.site()).unwrap();
            selector.append(&head.part(0..100));
            let mut picks = Picks::new(100);
            picks.store_scores();
            picks.take_all(0..9);
            selector.select(&row, &mut picks);
            picks.scores().unwrap().to_vec()
        };
        let alone = scores(&hashes(20, Score::Head));
        assert_eq!(scores(&config(0.5, Score::Head, hashes(20, Score::Head))), alone);
    }

    /// Selector that counts the tokens, prompts and attended tokens that it receives.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    struct CountingSelector {
        #[serde(skip)]
        counts: Arc<[AtomicUsize; 3]>,
    }

    #[typetag::serde(name = "counting")]
    impl SelectorConfig for CountingSelector {
        fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
            Ok(Box::new(self.clone()))
        }
    }

    impl Selector for CountingSelector {
        fn append(&mut self, new: &NewTokens<'_>) {
            self.counts[0].fetch_add(new.keys.len(), Ordering::Relaxed);
        }

        fn observe(&mut self, _: &PromptQueries<'_>) {
            self.counts[1].fetch_add(1, Ordering::Relaxed);
        }

        fn feedback(&mut self, _: &Row<'_>, attended: &AttentionWeights<'_>) {
            self.counts[2].fetch_add(attended.tokens.len(), Ordering::Relaxed);
        }

        fn needs_feedback(&self) -> bool {
            true
        }

        fn index_bytes(&self) -> usize {
            77
        }

        fn select(&self, _: &Row<'_>, _: &mut Picks) {}
    }

    #[test]
    fn all_calls_reach_the_other_selector() {
        let head = Head::new(9, 2, 1, Texture::Gaussian);
        let counting = CountingSelector::default();
        let counts = counting.counts.clone();
        let mut selector = config(0.5, Score::Head, counting).build(head.site()).unwrap();
        selector.append(&head.part(0..9));
        selector.observe(&head.prompt());
        let row = head.step(9).row(0);
        selector
            .feedback(&row, &AttentionWeights { tokens: &[1, 2], weights: &[0.5, 0.5], sink: 0.0 });
        let mut picks = Picks::new(9);
        selector.select(&row, &mut picks);
        assert!(picks.is_empty(), "there are no candidates");
        assert_eq!([0, 1, 2].map(|i| counts[i].load(Ordering::Relaxed)), [9, 1, 2]);
        assert!(selector.needs_feedback() && selector.index_bytes() == 77);
    }
}
