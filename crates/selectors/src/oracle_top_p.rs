//! `oracle-top-p`: the fewest tokens that hold a given share of the attention, found by looking at
//! all of them.
//!
//! Takes tokens by falling attention, lower index first among equals, until their share exceeds
//! `mass`: of what the selectors before left (`of = "residual"`), or of everything, what was taken
//! before included (`of = "all"`). The token that crosses `mass` is taken.
//!
//! Cost: O(visible · (head_dim + log visible)) per row: it reads every key, and sorts.
//!
//! # Guarantee
//! The share is exact. With `score = "head"` no untaken token's logit exceeds the best one left
//! over, which it tells the estimators that need such a bound.
//!
//! With `score = "group"` a token's attention is summed over the query heads of the KV head, each
//! head's adding up to 1.
//!
//! Of this kind: Lin et al. (2025), "Twilight: Adaptive Attention Sparsity with Hierarchical Top-p
//! Pruning", <https://arxiv.org/abs/2502.02770>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, Picks, Result, Row, Score, Selector, SelectorConfig, Site, register, typetag,
};

/// The fewest tokens that hold more than `mass` of the attention.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OracleTopP {
    /// The share of the attention to exceed.
    pub mass: Fraction,
    /// What it is a share of.
    #[serde(default)]
    pub of: MassOf,
    /// Whose attention counts.
    #[serde(default)]
    pub score: Score,
}

/// What a mass is a share of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MassOf {
    /// The tokens that the selectors before left.
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
}

impl Selector for OracleTopP {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let within = |token: usize| self.of == MassOf::All || !picks.contains(token);
        let shares = attention(row, self.score, within);
        let mut covered: f64 = picks.iter().map(|(token, _)| shares[token]).sum();
        let enough = self.mass.get() * shares.iter().sum::<f64>();
        let mut rest: Vec<usize> = picks.residual().collect();
        rest.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]).then(a.cmp(&b)));
        let mut rest = rest.into_iter().peekable();
        while covered <= enough
            && let Some(token) = rest.next()
        {
            covered += shares[token];
            picks.take(token);
        }
        if let (Score::Head, Some(&best)) = (self.score, rest.peek()) {
            picks.bound_residual(row.logit(best));
        }
    }
}

/// How attention spreads over the visible tokens that are `within`, `[visible]`: 1 in all for each
/// head that counts.
fn attention(row: &Row<'_>, score: Score, within: impl Fn(usize) -> bool) -> Vec<f64> {
    let heads = match score {
        Score::Head => vec![row.scores(Score::Head)],
        Score::Group => row.members().map(|member| member.scores(Score::Head)).collect(),
    };
    let mut shares = vec![0.0; row.visible()];
    for logits in heads {
        let all = || logits.iter().enumerate().filter(|(token, _)| within(*token));
        let shift = all().map(|(_, &logit)| logit).fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| f64::from(logit - shift).exp();
        let total: f64 = all().map(|(_, &logit)| weight(logit)).sum();
        for (token, &logit) in all() {
            shares[token] += weight(logit) / total;
        }
    }
    shares
}

register!(
    Selector,
    "oracle-top-p",
    OracleTopP,
    "the fewest tokens that hold a share of the attention, by reading every key"
);
