//! `tactic`: the tokens, in the order of their clusters' scores, that are expected to hold a share
//! of the attention.
//!
//! At the end of a prompt its tokens are clustered by their keys, with `cluster` tokens per cluster
//! on average. Later tokens join the cluster whose mean is nearest, until another prompt ends. For
//! a query, the clusters are ordered by the product of the query with their mean; ties go to the
//! lower number. The tokens not yet picked are put into the order of their clusters, and lower
//! tokens come first within a cluster. The tokens' weights `exp(q·k)` along that order are
//! estimated from few of them: the first `exact` tokens, and two later windows, each a hundredth of
//! the order wide, which begin at a tenth and at six tenths of the order. The function
//!
//! ```text
//! weight of the x-th token = max(a/x + b, 0)
//! ```
//!
//! is fitted to the means of these windows, with `a = 0` if the weights rise. The selector picks
//! the fewest tokens from the beginning of the order whose weights reach `mass` of the sum of all
//! weights, where the first weights are exact and the others are given by the curve. If the order
//! is too short for both windows, all its tokens are read. Without a prompt everything is picked.
//!
//! Cost: O(clusters · head_dim + visible) per query head, a sort of the clusters, and reads of
//! `exact` keys and of a fiftieth of the keys. The index takes 4 bytes per token and `8 · head_dim`
//! per cluster. Appending a token is O(clusters · head_dim), the end of a prompt O(iterations ·
//! tokens · clusters · head_dim).
//!
//! # Guarantee
//! The selector alone guarantees nothing. The share refers to the attention over the
//! tokens not yet picked, and it is expected, not measured: the curve may be wrong, and heavy
//! tokens in clusters of a small mean come late in the order. An attention sink is such a token, so
//! a `sink` should precede this selector. On the trace in `data`, the mean error at a mass of 0.9
//! is 0.06 after a sink and a window of 128, and 0.94 without them, where only `exact = 0.999`
//! reduces it (to 0.10). An estimator after the selector measures this error with a sample of the
//! other tokens.
//!
//! The following is our own design, made without access to the authors' code: the places of the
//! windows, the fit of the curve, and the treatment of new tokens. As with any selector, query
//! heads that share a token list read the union of their picks.
//!
//! Zhu, Tang, Xu, Gu, Zeng, Kadekodi, Zhao, Li, Krishnamurthy, Kasikci (2025), "Tactic: Adaptive
//! Sparse Attention with Clustering and Distribution Fitting for Long-Context LLMs",
//! <https://arxiv.org/abs/2502.12216>.

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

/// Tokens, in the order of their clusters' scores, that are expected to hold `mass` of the
/// attention.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tactic {
    /// Share of the attention over the tokens not yet picked.
    pub mass: Fraction,
    /// Number of tokens in a cluster, on average.
    #[serde(default = "cluster")]
    pub cluster: NonZeroU16,
    /// Number of first tokens, in the order of their clusters, whose weights are computed exactly;
    /// a share is taken of the tokens that earlier selectors have not picked.
    #[serde(default = "exact")]
    pub exact: Size,
    /// Largest number of k-means iterations.
    #[serde(default = "default_iterations")]
    pub iterations: u16,
}

/// Default of `cluster`, the authors' 32.
fn cluster() -> NonZeroU16 {
    const { NonZeroU16::new(32).unwrap() }
}

/// Default of `exact`: 2 %, where the authors have 1 to 2 %.
fn exact() -> Size {
    Size::Share(Fraction::try_from(0.02).expect("0.02 is between 0 and 1"))
}

fn default_iterations() -> u16 {
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

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct TacticSelector {
    config: Tactic,
    site: Site,
    index: Option<TacticIndex>,
}

/// Clusters of all tokens so far, and the centroids by which new tokens join them.
#[derive(Clone)]
struct TacticIndex {
    clusters: Clusters,
    centroids: Centroids,
}

impl TacticIndex {
    /// Clusters tokens by their keys `[tokens, head_dim]`.
    fn new(config: &Tactic, site: &Site, keys: ArrayView2<'_, f32>) -> Self {
        let most = (keys.nrows() / usize::from(config.cluster.get())).max(1);
        let order = order(keys.nrows(), site, 0);
        let centroids = Centroids::new(k_means(keys, most, config.iterations, order).view());
        let clusters = Clusters::new(keys, &assign(keys, &centroids));
        let centroids = Centroids::new(clusters.means());
        Self { clusters, centroids }
    }

    /// Returns the visible tokens that are not picked, by falling `scores` of their clusters.
    fn order_tokens(&self, scores: &[f32], picks: &Picks) -> Vec<usize> {
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

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("clusters the keys of its own sequence")
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        self.config.tunable()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let Some(index) = &self.index else {
            return picks.take_range(0..row.visible());
        };
        let mut scores = index.clusters.logits(row.query());
        let tokens = index.order_tokens(&scores, picks);
        let curve =
            Curve::new(tokens.len(), self.config.exact, |ranks| row.logits_of(&tokens[ranks]));
        let count = curve.count_for_mass(self.config.mass);
        picks.take_all(tokens.into_iter().take(count));
        row.form().cap(&mut scores);
        let token_scores = || index.clusters.per_token(&scores, row.visible());
        picks.set_scores(std::iter::once_with(token_scores).flatten());
    }
}

register!(
    Selector,
    "tactic",
    Tactic,
    "the tokens, in the order of their clusters' scores, that are expected to hold a share of the \
     attention"
);

#[cfg(test)]
mod tests;
