//! `oracle-top-k`: the tokens with the largest attention scores, found by scoring every key.
//!
//! Among the tokens not yet picked, the selector picks the `size` tokens with the largest `q·k`;
//! ties go to the lower index.
//!
//! Cost: O(visible · head_dim) per row, because every key is read. The selector shows what a
//! perfect index would pick; only reads of values are saved.
//!
//! # Guarantee
//! With `score = "head"` no token left over has a logit above the best score left over, and the
//! selector reports this score to the estimators that need such a bound. With `score = "group"`
//! there is no bound for a single head.
//!
//! Gupta, Dar, Goodman, Ciprut, Berant (2021), "Memory-efficient Transformers via Top-k Attention",
//! <https://arxiv.org/abs/2106.06899>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Picks, Result, Row, Selector, SelectorConfig, Site, Size, plugin::Tunable, register,
    step::Score, typetag,
};

/// The tokens with the largest scores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OracleTopK {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Scores to rank by: each query head's own, or the sum over its group.
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

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

impl Selector for OracleTopK {
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
        let scores = row.scores(self.score);
        let left = picks.take_top(self.size.to_tokens(row.visible()), &scores);
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
    OracleTopK { size: vattention_core::Size::Tokens(7), score: Score::Head }
);
#[cfg(test)]
vattention_testkit::laws!(
    by_group,
    OracleTopK { size: vattention_core::Size::Tokens(7), score: Score::Group }
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MassScope, OracleTopP};
    use vattention_core::Fraction;
    use vattention_testkit::{Head, Texture};

    #[test]
    fn only_head_scores_bound_the_residual_by_the_best_logit_left() {
        let head = Head::new(100, 8, 1, Texture::Gaussian);
        let row = head.step(100).row(1);
        for (score, bounded) in [(Score::Head, true), (Score::Group, false)] {
            let mass = Fraction::try_from(0.5).unwrap();
            let top_p = OracleTopP { mass, of: MassScope::All, score };
            let configs: [&dyn SelectorConfig; 2] =
                [&OracleTopK { size: Size::Tokens(7), score }, &top_p];
            for config in configs {
                let mut picks = Picks::new(100);
                picks.take(3);
                config.build(head.site()).unwrap().select(&row, &mut picks);
                let best = picks.residual().map(|token| row.logit(token)).reduce(f32::max);
                assert_eq!(picks.residual_bound(), best.filter(|_| bounded), "{config:?}");
            }
        }
    }
}
