//! Gates of KV heads, as DuoAttention tells heads that retrieve from those that stream.
//!
//! The gate of a KV head is the mean error of the output that reads the first [`DuoAttention::SINK`] and the last [`DuoAttention::RECENT`] tokens alone,
//! `|out − exact| / |exact|`, at most 1, over the queries of its group.
//!
//! The authors learn gates instead: by the last layer's output on texts with hidden passkeys, through the gradients of the whole model,
//! with a price on each head that reads everything. A trace has one layer's output and no gradient. What both ask is how far the output
//! moves if a head streams; what the others make of that is theirs alone.
//!
//! Xiao, Tang, Zuo, Guo, Yang, Tang, Fu, Han (2024), "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and
//! Streaming Heads", <https://arxiv.org/abs/2410.10819>; the file is as theirs.

use std::collections::BTreeMap;

use ndarray::{Array1, ArrayView1, ArrayView2, s};
use rayon::prelude::*;
use vattention_core::Shape;
use vattention_selectors::DuoAttention;
use vattention_trace::TraceLayer;

use crate::{Corpus, Result};

/// Gates of the KV heads of some layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gates {
    layers: BTreeMap<usize, Vec<f64>>,
}

impl Gates {
    /// Measures every head. O(query_heads · queries · tokens · dim) for each layer.
    ///
    /// # Errors
    /// What [`Corpus::layer`] refuses.
    pub fn calibrate(corpus: &Corpus) -> Result<Self> {
        let mut layers = BTreeMap::new();
        for (number, shape) in corpus.layers() {
            let scale = corpus.scale().unwrap_or(shape.default_scale());
            let (mut errors, mut rows) = (vec![0.0; shape.query_heads], 0);
            for layer in corpus.layer(number) {
                let layer = layer?;
                let of_head =
                    (0..shape.query_heads).into_par_iter().map(|head| error(&layer, head, scale));
                let of_head: Vec<f64> = of_head.collect();
                errors.iter_mut().zip(of_head).for_each(|(sum, error)| *sum += error);
                rows += layer.queries.dim().1;
            }
            layers.insert(number, of_groups(&errors, shape, rows));
        }
        Ok(Self { layers })
    }

    /// The gates of a layer's KV heads.
    pub fn layer(&self, number: usize) -> Option<&[f64]> {
        self.layers.get(&number).map(Vec::as_slice)
    }

    /// The file: a line for each layer from 0 on, a number for each KV head between tabs, `nan` where nothing was
    /// measured.
    pub fn to_tsv(&self) -> String {
        let Some((&last, gates)) = self.layers.last_key_value() else { return String::new() };
        let unknown = vec![f64::NAN; gates.len()];
        let line = |number| {
            let gates = self.layers.get(&number).unwrap_or(&unknown).iter();
            let numbers =
                gates.map(|gate| if gate.is_nan() { "nan".into() } else { format!("{gate:.6}") });
            numbers.collect::<Vec<_>>().join("\t") + "\n"
        };
        (0..=last).map(line).collect()
    }
}

/// The means over each group, of sums over the rows of each query head.
fn of_groups(errors: &[f64], shape: Shape, rows: usize) -> Vec<f64> {
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / (errors.len() * rows) as f64;
    errors.chunks(shape.group()).map(mean).collect()
}

/// The sum over a query head's queries of the error of streaming.
fn error(layer: &TraceLayer, head: usize, scale: f32) -> f64 {
    let kv_head = head / layer.shape().group();
    let keys = layer.keys.slice(s![kv_head, .., ..]);
    let values = layer.values.slice(s![kv_head, .., ..]);
    let of_query = |(i, query): (usize, ArrayView1<'_, f32>)| {
        let seen = layer.visible_to(i);
        let query = &query * scale;
        error_of_query(query.view(), keys.slice(s![..seen, ..]), values.slice(s![..seen, ..]))
    };
    layer.queries.slice(s![head, .., ..]).outer_iter().enumerate().map(of_query).sum()
}

fn error_of_query(
    query: ArrayView1<'_, f32>,
    keys: ArrayView2<'_, f32>,
    values: ArrayView2<'_, f32>,
) -> f64 {
    let tokens = keys.nrows();
    if tokens <= DuoAttention::SINK + DuoAttention::RECENT {
        return 0.0;
    }
    let logits = keys.dot(&query);
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut weights = logits.mapv_into(|logit| (logit - most).exp());
    let exact = average(&weights, values);
    weights.slice_mut(s![DuoAttention::SINK..tokens - DuoAttention::RECENT]).fill(0.0);
    if weights.sum() == 0.0 {
        return 1.0;
    }
    let norm = |x: &Array1<f32>| f64::from(x.dot(x)).sqrt();
    let far = norm(&(average(&weights, values) - &exact));
    if far == 0.0 { 0.0 } else { (far / norm(&exact)).min(1.0) }
}

fn average(weights: &Array1<f32>, values: ArrayView2<'_, f32>) -> Array1<f32> {
    weights.dot(&values) / weights.sum()
}

#[cfg(test)]
mod tests;
