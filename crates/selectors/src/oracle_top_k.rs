//! `oracle-top-k`: the tokens with the largest attention scores, found by looking at all of them.
//!
//! Takes the `size` largest `q·k` among the tokens not yet taken, lower index first among equals.
//!
//! Cost: O(visible · head_dim) per row: it reads every key. It shows what a perfect index would
//! pick, and saves value reads only.
//!
//! # Guarantee
//! With `score = "head"` no untaken token's logit exceeds the best score left over, which it tells
//! the estimators that need such a bound. With `score = "group"` there is no bound for one head.
//!
//! Gupta, Dar, Goodman, Ciprut, Berant (2021), "Memory-efficient Transformers via Top-k
//! Attention", <https://arxiv.org/abs/2106.06899>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Picks, Result, Row, Score, Selector, SelectorConfig, Site, Size, register, typetag,
};

/// The `size` tokens with the largest scores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OracleTopK {
    /// How many tokens, beside those already taken.
    pub size: Size,
    /// Whose scores count.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "oracle-top-k")]
impl SelectorConfig for OracleTopK {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for OracleTopK {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let scores = row.scores(self.score);
        let left = picks.take_top(self.size.of(row.visible()), |token| scores[token]);
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
vattention_testkit::laws!(by_head, OracleTopK { size: Size::Tokens(7), score: Score::Head });
#[cfg(test)]
vattention_testkit::laws!(by_group, OracleTopK { size: Size::Tokens(7), score: Score::Group });
