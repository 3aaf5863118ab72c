//! Clusters of a KV head's tokens, by their keys: what `squeezed-attention` and `tactic` rank in place of tokens. The centroids
//! and k-means are those of `pq-cache`, too.

mod centroids;
mod k_means;

use vattention_core::Tokens;
use vattention_core::ndarray::{Array2, ArrayView2, Axis};

pub use centroids::Centroids;
pub use k_means::{assign, k_means, order};

/// Tokens in clusters, of which none is empty, and the mean key of each.
#[derive(Clone, Debug)]
pub struct Clusters {
    /// `[clusters, head_dim]`
    means: Array2<f32>,
    /// The tokens of each, ascending.
    members: Vec<Vec<u32>>,
}

impl Clusters {
    /// Tokens with these keys `[tokens, head_dim]`, those with the same label in one cluster. Clusters are in the order of their
    /// labels. Means are summed in f64, in the order of the tokens.
    pub fn new(keys: ArrayView2<'_, f32>, labels: &[usize]) -> Self {
        let most = labels.iter().max().map_or(0, |label| label + 1);
        let mut members = vec![Vec::new(); most];
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// The tokens of one, ascending.
    pub fn members(&self, cluster: usize) -> &[u32] {
        &self.members[cluster]
    }

    /// The mean keys, `[clusters, head_dim]`.
    pub fn means(&self) -> ArrayView2<'_, f32> {
        self.means.view()
    }

    /// The product of each mean with a query `[head_dim]`, `[clusters]`. O(clusters · head_dim).
    pub fn logits(&self, query: &[f32]) -> Vec<f32> {
        let mut logits = vec![0.0; self.count()];
        self.rows().dots(0..self.count(), query, &mut logits);
        logits
    }

    /// Those of some clusters.
    pub fn logits_of(&self, clusters: &[usize], query: &[f32]) -> Vec<f32> {
        let mut logits = vec![0.0; clusters.len()];
        self.rows().dots_of(clusters, query, &mut logits);
        logits
    }

    fn rows(&self) -> Tokens<'_> {
        let rows = self.means.as_slice().expect("rows lie one after the other");
        Tokens::new(rows, self.count(), self.means.ncols())
    }

    /// Another token, later than all others, is in this cluster. Its mean stays what it was.
    pub fn join(&mut self, token: usize, cluster: usize) {
        self.members[cluster].push(token as u32);
    }

    /// What each of the first `visible` tokens has of its cluster's `scores` `[clusters]`; what is in none has 0.
    pub fn per_token(&self, scores: &[f32], visible: usize) -> Vec<f32> {
        let mut of_tokens = vec![0.0; visible];
        for (members, &score) in self.members.iter().zip(scores) {
            let seen = members.partition_point(|&token| (token as usize) < visible);
            for &token in &members[..seen] {
                of_tokens[token as usize] = score;
            }
        }
        of_tokens
    }

    /// What they take.
    pub fn bytes(&self) -> usize {
        let members: usize = self.members.iter().map(|tokens| size_of_val(&tokens[..])).sum();
        members + self.means.len() * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests;
