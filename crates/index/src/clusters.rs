//! Clusters of a KV head's tokens by their keys. The selectors `squeezed-attention` and `tactic`
//! rank clusters in place of tokens; `pq-cache` uses the centroids and k-means.

mod centroids;
mod k_means;

use vattention_core::Tokens;
use vattention_core::ndarray::{Array2, ArrayView2, Axis};

pub use centroids::Centroids;
pub use k_means::{assign, k_means, order};

/// Non-empty clusters of tokens, and the mean key of each.
#[derive(Clone, Debug)]
pub struct Clusters {
    /// `[clusters, head_dim]`
    means: Array2<f32>,
    /// Tokens of each cluster, ascending.
    members: Vec<Vec<u32>>,
}

impl Clusters {
    /// Puts tokens with the same label into one cluster, in the order of the labels. `keys` are
    /// `[tokens, head_dim]`. Means are summed in f64, in the order of the tokens.
    pub fn new(keys: ArrayView2<'_, f32>, labels: &[usize]) -> Self {
        let count = labels.iter().max().map_or(0, |label| label + 1);
        let mut members = vec![Vec::new(); count];
        labels.iter().enumerate().for_each(|(token, &label)| members[label].push(token as u32));
        members.retain(|tokens| !tokens.is_empty());
        let mut means = Array2::zeros((members.len(), keys.ncols()));
        for (mut mean, tokens) in means.rows_mut().into_iter().zip(&members) {
            let sums = tokens.iter().fold(vec![0.0; keys.ncols()], |mut sums, &token| {
                let key = keys.index_axis(Axis(0), token as usize);
                sums.iter_mut().zip(key).for_each(|(sum, &x)| *sum += f64::from(x));
                sums
            });
            mean.iter_mut().zip(sums).for_each(|(x, sum)| *x = (sum / tokens.len() as f64) as f32);
        }
        Self { means, members }
    }

    /// Number of clusters.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Tokens of a cluster, ascending.
    pub fn members(&self, cluster: usize) -> &[u32] {
        &self.members[cluster]
    }

    /// Mean keys, `[clusters, head_dim]`.
    pub fn means(&self) -> ArrayView2<'_, f32> {
        self.means.view()
    }

    /// Product of each mean with a query `[head_dim]`, `[clusters]`. O(clusters · head_dim).
    pub fn logits(&self, query: &[f32]) -> Vec<f32> {
        let mut logits = vec![0.0; self.count()];
        self.rows().dots(0..self.count(), query, &mut logits);
        logits
    }

    /// Product of the means of some clusters with a query `[head_dim]`.
    pub fn logits_of(&self, clusters: &[usize], query: &[f32]) -> Vec<f32> {
        let mut logits = vec![0.0; clusters.len()];
        self.rows().dots_of(clusters, query, &mut logits);
        logits
    }

    fn rows(&self) -> Tokens<'_> {
        let rows = self.means.as_slice().expect("rows lie one after the other");
        Tokens::new(rows, self.count(), self.means.ncols())
    }

    /// Adds a token that follows all others to a cluster. The cluster's mean does not change.
    pub fn join(&mut self, token: usize, cluster: usize) {
        self.members[cluster].push(token as u32);
    }

    /// Gives each of the first `visible` tokens the score of its cluster. `scores` are
    /// `[clusters]`; tokens in no cluster have the score 0.
    pub fn per_token(&self, scores: &[f32], visible: usize) -> Vec<f32> {
        let mut token_scores = vec![0.0; visible];
        for (members, &score) in self.members.iter().zip(scores) {
            let count = members.partition_point(|&token| (token as usize) < visible);
            for &token in &members[..count] {
                token_scores[token as usize] = score;
            }
        }
        token_scores
    }

    /// Bytes of means and members.
    pub fn bytes(&self) -> usize {
        let members: usize = self.members.iter().map(|tokens| size_of_val(&tokens[..])).sum();
        members + self.means.len() * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests;
