//! `oracle-top-p`: the fewest tokens that hold a given share of the attention, found by scoring
//! every key.
//!
//! The selector picks tokens by falling attention until their share exceeds `mass`; ties go to the
//! lower index. The token with which the share crosses `mass` is picked, too. The share refers to
//! the attention over the tokens that earlier selectors left (`of = "residual"`), or over all
//! visible tokens and an attention sink that the model has learned, where tokens picked earlier and
//! the sink count towards the share (`of = "all"`).
//!
//! Cost: O(visible · head_dim) per row, because every key is read, and a sort of the tokens whose
//! share is close to the smallest picked one.
//!
//! # Guarantee
//! The share is exact. With `score = "head"` no token left over has a logit above the best one left
//! over, and the selector reports this logit to the estimators that need such a bound.
//!
//! With `score = "group"` a token's attention is summed over the query heads of the KV head, where
//! each head's attention sums to 1. Samplers that draw by scores receive the logarithm of this sum.
//!
//! Similar method: Lin et al. (2025), "Twilight: Adaptive Attention Sparsity with Hierarchical
//! Top-p Pruning", <https://arxiv.org/abs/2502.02770>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, Picks, Result, Row, Selector, SelectorConfig, Site, plugin::Tunable, register,
    step::Score, typetag,
};

use crate::top_p::{AttentionShares, TopP};

/// The fewest tokens that hold more than `mass` of the attention.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OracleTopP {
    /// Share of the attention to exceed.
    pub mass: Fraction,
    /// Tokens whose attention `mass` refers to.
    #[serde(default)]
    pub of: MassScope,
    /// Attention to rank by: each query head's own, or the sum over its group.
    #[serde(default)]
    pub score: Score,
}

/// Tokens over which attention is summed for a `mass` of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MassScope {
    /// Tokens that no earlier selector picked.
    #[default]
    Residual,
    /// All visible tokens.
    All,
}

#[typetag::serde(name = "oracle-top-p")]
impl SelectorConfig for OracleTopP {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }

    fn bounds_residual(&self) -> bool {
        self.score == Score::Head
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Mass(&mut self.mass))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

impl Selector for OracleTopP {
    fn can_truncate(&self) -> bool {
        true
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        SelectorConfig::tunable(self)
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let tokens: Vec<usize> = match self.of {
            MassScope::Residual => picks.residual().collect(),
            MassScope::All => (0..row.visible()).collect(),
        };
        // An attention sink counts like a token that was picked earlier.
        let sinks_count = self.of == MassScope::All;
        let shares = AttentionShares::new(row, self.score, sinks_count, |row| {
            let all = row.scores(Score::Head);
            tokens.iter().map(|&token| all[token]).collect()
        });
        // Computed only if a sampler needs scores.
        let mut scored = tokens.iter().zip(&shares.tokens).peekable();
        picks.set_scores((0..row.visible()).map(|token| {
            let share = scored.next_if(|(other, _)| **other == token);
            share.map_or(f32::MIN, |(_, share)| share.max(f64::MIN_POSITIVE).ln() as f32)
        }));
        let enough = self.mass.get() * shares.total();
        let (mut left, mut shares_left, mut covered) = (Vec::new(), Vec::new(), shares.sinks);
        for (token, share) in tokens.into_iter().zip(shares.tokens) {
            if picks.contains(token) {
                covered += share;
            } else {
                left.push(token);
                shares_left.push(share);
            }
        }
        let TopP { taken, next } = TopP::new(&left, &shares_left, covered, enough);
        picks.take_all(taken);
        if let (Score::Head, Some(best)) = (self.score, next) {
            picks.bound_residual(row.logit(best));
        }
    }
}

register!(
    Selector,
    "oracle-top-p",
    OracleTopP,
    "the fewest tokens that hold a share of the attention, by reading every key"
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vattention_testkit::{Head, Texture, heads};

    fn config(mass: f64, of: MassScope, score: Score) -> OracleTopP {
        OracleTopP { mass: Fraction::try_from(mass).unwrap(), of, score }
    }

    vattention_testkit::laws!(residual_mass, config(0.5, MassScope::Residual, Score::Head));
    vattention_testkit::laws!(group_mass_of_all, config(0.8, MassScope::All, Score::Group));

    /// Returns a row's new picks by falling weight, where every third token was picked before, and
    /// the weights of all tokens.
    fn pick(head: &Head, config: &OracleTopP) -> (Vec<usize>, Vec<f64>) {
        let row = head.step(head.tokens).row(1);
        let mut picks = Picks::new(head.tokens);
        picks.take_all((0..head.tokens).step_by(3));
        let before = picks.clone();
        config.select(&row, &mut picks);
        let logits = row.scores(Score::Head);
        let weights: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
        let mut picked: Vec<usize> = before.residual().filter(|&t| picks.contains(t)).collect();
        picked.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
        (picked, weights)
    }

    /// The scores of the tokens left over are the logits plus a constant.
    #[test]
    fn samplers_receive_the_logits() {
        let head = Head::new(100, 8, 1, Texture::Gaussian);
        let row = head.step(100).row(1);
        for of in [MassScope::Residual, MassScope::All] {
            let mut picks = Picks::new(100);
            picks.store_scores();
            picks.take_all([3, 50]);
            config(0.5, of, Score::Head).select(&row, &mut picks);
            let scores = picks.scores().unwrap();
            for (a, b) in picks.residual().zip(picks.residual().skip(1)) {
                let apart = row.logit(a) - row.logit(b);
                assert!((scores[a] - scores[b] - apart).abs() < 1e-4, "{a} and {b}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// The share of the picks exceeds the mass, and without the lightest pick it does not.
        #[test]
        fn the_picks_are_the_fewest_that_hold_the_mass(head in heads(150), mass in 0.05..0.95) {
            for of in [MassScope::Residual, MassScope::All] {
                let (picked, weights) = pick(&head, &config(mass, of, Score::Head));
                let taken = |token: &usize| token.is_multiple_of(3);
                let (mut covered, mut total) = (0.0, 0.0);
                for (token, weight) in weights.iter().enumerate() {
                    if of == MassScope::All || !taken(&token) {
                        total += weight;
                        covered += if taken(&token) { *weight } else { 0.0 };
                    }
                }
                let added: f64 = picked.iter().map(|&t| weights[t]).sum();
                let share = (covered + added) / total;
                let left = weights.len() - weights.len().div_ceil(3) - picked.len();
                prop_assert!(share > mass - 1e-6 || left == 0, "{share} of {mass}");
                if let Some(&last) = picked.last() {
                    let before = share - weights[last] / total;
                    prop_assert!(before <= mass + 1e-6, "{of:?} takes too much");
                }
            }
        }

        /// With a larger mass, all tokens are picked that a smaller mass picks.
        #[test]
        fn more_mass_picks_more(head in heads(150), a in 0.05..0.95, b in 0.05..0.95) {
            let picked = |mass| pick(&head, &config(mass, MassScope::Residual, Score::Head)).0;
            let (few, many) = (picked(f64::min(a, b)), picked(f64::max(a, b)));
            prop_assert_eq!(&many[..few.len()], &few[..]);
        }
    }
}
