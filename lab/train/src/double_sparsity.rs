//! Channels in order of importance, for Double Sparsity, which ranks tokens by the most important
//! channels only.
//!
//! The importance of channel `c` is the mean of `|q_c|`, of `|k_c|`, or of `|q_c k_c|` over pairs
//! of a query and the key of the same token. Only prompt queries make pairs: they belong to the
//! last tokens of the prompt, while other queries need not belong to a token of the trace. Without
//! prompt queries in any trace, the third importance is the product of the first two, which ignores
//! correlations. The importance for a KV head is the sum over its query heads.
//!
//! Yang, Sheng, Gonzalez, Stoica, Zheng (2024), "Post-Training Sparse Attention with Double
//! Sparsity", <https://arxiv.org/abs/2408.07092>; the file has the authors' keys.

use std::collections::BTreeMap;

use ndarray::{Array2, Array3, ArrayView3, Axis, s};
use vattention_trace::TraceLayer;

use crate::{Corpus, Result};

/// Channels of one layer, `[heads]`: for each head, all channels by decreasing importance.
type ChannelOrder = Vec<Vec<usize>>;

/// Channel lists of layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Channels {
    lists: BTreeMap<String, ChannelOrder>,
    /// Number of pairs per head of a query and its own token's key, in the layer with the fewest.
    /// In a layer without pairs, `qk` is a product of means.
    pub pairs: usize,
}

impl Channels {
    /// Ranks the channels of every layer.
    ///
    /// # Errors
    /// Errors of [`Corpus::layer`].
    pub fn calibrate(corpus: &Corpus) -> Result<Self> {
        let mut channels = Self { lists: BTreeMap::new(), pairs: usize::MAX };
        for (number, _) in corpus.layers() {
            let mut sums = ChannelSums::default();
            for layer in corpus.layer(number) {
                sums.add(&layer?);
            }
            channels.pairs = channels.pairs.min(sums.pairs.count);
            channels.push(number, &sums);
        }
        Ok(channels)
    }

    /// Returns the list under a key of the file, `[heads]` of all channels.
    pub fn get(&self, key: &str) -> Option<&[Vec<usize>]> {
        self.lists.get(key).map(Vec::as_slice)
    }

    /// Returns the file as JSON. The authors' keys `model.layers.{l}.self_attn.{q,k,qk}_proj` have
    /// a list for each query head; keys with the suffix `_group` have a list for each KV head.
    pub fn to_json(&self) -> String {
        let line = |(key, order): (&String, &ChannelOrder)| format!("  \"{key}\": {order:?}");
        let lines: Vec<String> = self.lists.iter().map(line).collect();
        format!("{{\n{}\n}}\n", lines.join(",\n"))
    }

    fn push(&mut self, layer: usize, sums: &ChannelSums) {
        let queries = sums.queries.mean();
        let group = queries.nrows() / sums.keys.total.nrows();
        let keys = repeat_rows(&sums.keys.mean(), group);
        let products = if sums.pairs.count > 0 { sums.pairs.mean() } else { &queries * &keys };
        for (name, importance) in [("q", queries), ("k", keys), ("qk", products)] {
            let key = format!("model.layers.{layer}.self_attn.{name}_proj");
            self.lists.insert(format!("{key}_group"), rank(&sum_groups(&importance, group)));
            self.lists.insert(key, rank(&importance));
        }
    }
}

/// Mean over the rows of each head.
#[derive(Default)]
struct ChannelMean {
    /// Sum over rows, `[heads, head_dim]`.
    total: Array2<f64>,
    /// Number of rows.
    count: usize,
}

impl ChannelMean {
    fn add(&mut self, magnitudes: &Array3<f64>) {
        let sum = magnitudes.sum_axis(Axis(1));
        self.total = if self.count == 0 { sum } else { &self.total + &sum };
        self.count += magnitudes.len_of(Axis(1));
    }

    fn mean(&self) -> Array2<f64> {
        &self.total / self.count as f64
    }
}

#[derive(Default)]
struct ChannelSums {
    queries: ChannelMean,
    keys: ChannelMean,
    pairs: ChannelMean,
}

impl ChannelSums {
    fn add(&mut self, layer: &TraceLayer) {
        let magnitudes = |rows: ArrayView3<'_, f32>| rows.mapv(|x| f64::from(x).abs());
        let keys = magnitudes(layer.keys.view());
        self.queries.add(&magnitudes(layer.queries.view()));
        if let Some(prompt) = layer.prompt.as_ref().filter(|prompt| prompt.len_of(Axis(1)) > 0) {
            let prompt = magnitudes(prompt.view());
            self.queries.add(&prompt);
            let group = prompt.len_of(Axis(0)) / keys.len_of(Axis(0));
            let paired = layer.prompt_end() - prompt.len_of(Axis(1))..layer.prompt_end();
            let mut pairs = prompt;
            for (head, mut pairs) in pairs.outer_iter_mut().enumerate() {
                pairs *= &keys.slice(s![head / group, paired.clone(), ..]);
            }
            self.pairs.add(&pairs);
        }
        self.keys.add(&keys);
    }
}

/// Repeats the rows of KV heads for each of their query heads.
fn repeat_rows(rows: &Array2<f64>, group: usize) -> Array2<f64> {
    let dim = (rows.nrows() * group, rows.ncols());
    Array2::from_shape_fn(dim, |(head, channel)| rows[[head / group, channel]])
}

/// Sums rows over the query heads of each KV head.
fn sum_groups(rows: &Array2<f64>, group: usize) -> Array2<f64> {
    let dim = (rows.nrows() / group, rows.ncols());
    Array2::from_shape_fn(dim, |(head, channel)| {
        (0..group).map(|member| rows[[head * group + member, channel]]).sum()
    })
}

/// Ranks all channels of each head by decreasing importance; among channels of equal importance,
/// the lower one comes first.
fn rank(importance: &Array2<f64>) -> ChannelOrder {
    let order = |row: ndarray::ArrayView1<'_, f64>| {
        let mut channels: Vec<usize> = (0..row.len()).collect();
        channels.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        channels
    };
    importance.outer_iter().map(order).collect()
}

#[cfg(test)]
mod tests;
