//! `tactic`: as many tokens, in the order of their clusters' scores, as are expected to hold a share of the attention.
//!
//! At the end of a prompt its tokens are clustered by their keys, some `cluster` in each; later ones join the cluster whose
//! mean is nearest, until another prompt ends. For a query the clusters fall into an order by the product of their mean with it, lower number first among
//! equals, and with them the tokens not yet taken, lower token first within a cluster. How the tokens' weights `exp(q·k)` fall along that order
//! is told by few of them: the `exact` first are looked at, and two windows behind, a hundredth of the order wide, which begin at a tenth and at
//! six tenths of it. To the means of these windows
//!
//! ```text
//! weight of the x-th token = max(a/x + b, 0)
//! ```
//!
//! is fitted, with `a = 0` where the weights rise. Taken are the fewest tokens from the beginning of the order whose weights, the first ones' own and the
//! others' by the curve, reach `mass` of the sum of all. Where the windows leave nothing between them, all are looked at.
//! Without a prompt everything is taken.
//!
//! Cost: O(clusters · head_dim + visible) per query head and a sort of the clusters, and the keys of `exact` and a fiftieth of the tokens; an index of 4 bytes per token and
//! `8 · head_dim` per cluster. Appending a token is O(clusters · head_dim), the end of a prompt O(iterations · tokens · clusters · head_dim).
//!
//! # Guarantee
//! None by itself. The share is of the attention over the tokens that were not taken before, and it is expected, not measured: the curve may be wrong, and heavy
//! tokens in clusters of a small mean come late. An attention sink is such a token, so a `sink` should be before it: on the trace in `data` the mean
//! error at a mass of 0.9 is 0.06 after a sink and a window of 128, and 0.94 without them, where nothing but `exact = 0.999` mends it (0.10). An estimator with an error bar says what a sample of the rest shows.
//!
//! Our own design, without having seen the code: where the windows are, how the curve is fitted to them, and what becomes of new tokens.
//! What the query heads of a group take is joined, as for any selector.
//!
//! Zhu, Tang, Xu, Gu, Zeng, Kadekodi, Zhao, Li, Krishnamurthy, Kasikci (2025), "Tactic: Adaptive Sparse Attention with Clustering
//! and Distribution Fitting for Long-Context LLMs", <https://arxiv.org/abs/2502.12216>.

mod curve;

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use vattention_core::ndarray::ArrayView2;
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{PromptQueries, Tunable},
    register, typetag,
};

use curve::Curve;
use vattention_index::clusters::{Centroids, Clusters, assign, k_means, order};

/// As many tokens, by their clusters' scores, as are expected to hold `mass` of the attention.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tactic {
    /// The share of the attention over the tokens not yet taken.
    pub mass: Fraction,
    /// How many tokens are in a cluster, on average.
    #[serde(default = "cluster")]
    pub cluster: NonZeroU16,
    /// How many of the first tokens, in the order of their clusters, are weighed exactly: a share is of those not yet taken.
    #[serde(default = "exact")]
    pub exact: Size,
    /// The most times that the centroids are moved.
    #[serde(default = "ten")]
    pub iterations: u16,
}

/// 32, as the authors have.
fn cluster() -> NonZeroU16 {
    const { NonZeroU16::new(32).unwrap() }
}

/// 2 %; the authors have 1 to 2 %.
fn exact() -> Size {
    Size::Share(Fraction::try_from(0.02).expect("0.02 is between 0 and 1"))
}

fn ten() -> u16 {
    10
}

#[typetag::serde(name = "tactic")]
impl SelectorConfig for Tactic {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(TacticSelector { config: self.clone(), site: *site, index: None }))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Mass(&mut self.mass))
    }
}

#[derive(Clone)]
struct TacticSelector {
    config: Tactic,
    site: Site,
    index: Option<TacticIndex>,
}

/// All tokens so far in clusters, and what new ones join them by.
#[derive(Clone)]
struct TacticIndex {
    clusters: Clusters,
    centroids: Centroids,
}

impl TacticIndex {
    /// Clusters tokens with these keys `[tokens, head_dim]`.
    fn new(config: &Tactic, site: &Site, keys: ArrayView2<'_, f32>) -> Self {
        let most = (keys.nrows() / usize::from(config.cluster.get())).max(1);
        let order = order(keys.nrows(), site, 0);
        let centroids = Centroids::new(k_means(keys, most, config.iterations, order).view());
        let clusters = Clusters::new(keys, &assign(keys, &centroids));
        let centroids = Centroids::new(clusters.means());
        Self { clusters, centroids }
    }

    /// The visible tokens that are not picked, by falling `scores` of their clusters.
    fn in_order(&self, scores: &[f32], picks: &Picks) -> Vec<usize> {
        let mut clusters: Vec<usize> = (0..scores.len()).collect();
        clusters.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let visible = picks.visible();
        let mut tokens = Vec::with_capacity(visible - picks.len());
        for cluster in clusters {
            for &token in self.clusters.members(cluster) {
                let token = token as usize;
                if token < visible && !picks.contains(token) {
                    tokens.push(token);
                }
            }
        }
        tokens
    }
}

impl Selector for TacticSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let Some(index) = &mut self.index else { return };
        let mut key = vec![0.0; new.keys.dim()];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            index.clusters.join(new.first + token, index.centroids.nearest(&key));
        }
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let keys = prompt.keys.to_array(0..prompt.keys.len());
        self.index = Some(TacticIndex::new(&self.config, &self.site, keys.view()));
    }

    fn needs_prompt(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.index.as_ref().map_or(0, |index| index.clusters.bytes() + index.centroids.bytes())
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let Some(index) = &self.index else {
            return picks.take_range(0..row.visible());
        };
        let scores = index.clusters.logits(row.query());
        let tokens = index.in_order(&scores, picks);
        let curve =
            Curve::new(tokens.len(), self.config.exact, |ranks| row.logits_of(&tokens[ranks]));
        let count = curve.fewest(self.config.mass);
        picks.take_all(tokens.into_iter().take(count));
        let of_tokens = || index.clusters.per_token(&scores, row.visible());
        picks.ranked_by(std::iter::once_with(of_tokens).flatten());
    }
}

register!(
    Selector,
    "tactic",
    Tactic,
    "by clusters, as many tokens as are expected to hold a share of the attention"
);

#[cfg(test)]
mod tests;
