//! `oracle-top-k`: the tokens with the largest attention scores, found by looking at all of them.
//!
//! Takes the `size` largest `q·k` among the tokens not yet taken, lower index first among equals.
//!
//! With `size = "auto"` it takes the `k` that makes `k + max(base, b(k))` the least, `b(k)` being
//! what the promise of the estimator needs to sample after that. Weights are known; values are
//! judged by those of the tokens that are taken. What a later selector takes is not foreseen, nor what
//! `clt` and `sub-gaussian` ask for beyond `ratio` for the output, so that `k` is too small for them. With
//! `score = "group"` the most demanding query head's `b(k)` counts.
//!
//! Cost: O(visible · head_dim) per row: it reads every key. It shows what a perfect index would
//! pick, and saves value reads only. `"auto"` reads the values of what it takes, and for each query
//! head if `score = "group"`.
//!
//! # Guarantee
//! With `score = "head"` no untaken token's logit exceeds the best score left over, which it tells
//! the estimators that need such a bound. With `score = "group"` there is no bound for one head.
//!
//! Gupta, Dar, Goodman, Ciprut, Berant (2021), "Memory-efficient Transformers via Top-k
//! Attention", <https://arxiv.org/abs/2106.06899>.

mod auto;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    AutoSize, Picks, Result, Row, Selector, SelectorConfig, Site, plugin::Tunable, register,
    step::Score, typetag,
};

/// The tokens with the largest scores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OracleTopK {
    /// How many tokens, beside those already taken; `"auto"`: as many as make what is read the
    /// least.
    pub size: AutoSize,
    /// Whose scores count.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "oracle-top-k")]
impl SelectorConfig for OracleTopK {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }

    fn bounds_residual(&self) -> bool {
        self.score == Score::Head
    }

    fn needs_sampling(&self) -> bool {
        self.size == AutoSize::Auto
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        let AutoSize::Fixed(size) = &mut self.size else { return None };
        Some(Tunable::Sizes(vec![size]))
    }
}

impl OracleTopK {
    /// How many tokens to take for a row, beside `picks`. Without a sample to take them from,
    /// which no pipeline allows, `"auto"` takes none.
    fn count(&self, row: &Row<'_>, scores: &[f32], picks: &Picks) -> usize {
        match (self.size, row.sampling()) {
            (AutoSize::Fixed(size), _) => size.of(row.visible()),
            (AutoSize::Auto, Some(sampling)) => {
                auto::count(row, self.score, scores, picks, sampling)
            }
            (AutoSize::Auto, None) => 0,
        }
    }
}

impl Selector for OracleTopK {
    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let scores = row.scores(self.score);
        let left = picks.take_top(self.count(row, &scores, picks), &scores);
        if let (Score::Head, Some(bound)) = (self.score, left) {
            picks.bound_residual(bound);
        }
    }
}

register!(
    Selector,
    "oracle-top-k",
    OracleTopK,
    "the largest attention scores, by reading every key"
);

#[cfg(test)]
vattention_testkit::laws!(
    by_head,
    OracleTopK { size: vattention_core::Size::Tokens(7).into(), score: Score::Head }
);
#[cfg(test)]
vattention_testkit::laws!(
    by_group,
    OracleTopK { size: vattention_core::Size::Tokens(7).into(), score: Score::Group }
);

#[cfg(test)]
mod tests {
    use super::*;
    use vattention_core::Size;
    use vattention_testkit::{Head, Texture};

    #[test]
    fn the_bound_is_the_best_logit_left_and_only_of_a_heads_own_scores() {
        let head = Head::new(100, 8, 1, Texture::Gaussian);
        let row = head.step(100).row(1);
        for (score, bounded) in [(Score::Head, true), (Score::Group, false)] {
            let mut picks = Picks::new(100);
            picks.take(3);
            OracleTopK { size: Size::Tokens(7).into(), score }.select(&row, &mut picks);
            let best = picks.residual().map(|token| row.logit(token)).reduce(f32::max);
            assert_eq!(picks.residual_bound(), best.filter(|_| bounded), "{score:?}");
        }
    }
}
