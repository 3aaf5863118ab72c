//! Gates of KV heads, by which DuoAttention separates retrieval heads from streaming heads.
//!
//! The gate of a KV head is the error of the output if only the first [`DuoAttention::SINK`] and
//! the last [`DuoAttention::RECENT`] tokens are read, as a mean over the queries of its group. The
//! error is `|out − exact| / |exact|`, at most 1.
//!
//! The authors train gates instead. Their loss is the change of the last layer's output on texts
//! with hidden passkeys, with a penalty on retrieval heads, and gradients flow through the whole
//! model. A trace has no gradients, and only the outputs of single layers. Both methods measure the
//! change of an output if a head reads only these tokens; here, the effect on later layers is
//! ignored.
//!
//! Xiao, Tang, Zuo, Guo, Yang, Tang, Fu, Han (2024), "DuoAttention: Efficient Long-Context LLM
//! Inference with Retrieval and Streaming Heads", <https://arxiv.org/abs/2410.10819>; the file has
//! the authors' format.

use std::collections::BTreeMap;

use ndarray::{Array1, ArrayView1, ArrayView2, s};
use rayon::prelude::*;
use vattention_core::{Shape, SoftmaxForm};
use vattention_selectors::DuoAttention;
use vattention_trace::TraceLayer;

use crate::{Corpus, Result};

/// Gates of the KV heads of layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gates {
    layers: BTreeMap<usize, Vec<f64>>,
}

impl Gates {
    /// Measures the gate of every head. Costs O(query_heads · queries · tokens · dim) for each
    /// layer.
    ///
    /// # Errors
    /// Errors of [`Corpus::layer`].
    pub fn calibrate(corpus: &Corpus) -> Result<Self> {
        let mut layers = BTreeMap::new();
        for (number, shape) in corpus.layers() {
            let scale = corpus.scale().unwrap_or(shape.default_scale());
            let (mut errors, mut rows) = (vec![0.0; shape.query_heads], 0);
            for layer in corpus.layer(number) {
                let layer = layer?;
                let heads = (0..shape.query_heads).into_par_iter();
                let head_errors: Vec<f64> =
                    heads.map(|head| sum_errors(&layer, head, scale)).collect();
                errors.iter_mut().zip(head_errors).for_each(|(sum, error)| *sum += error);
                rows += layer.queries.dim().1;
            }
            layers.insert(number, group_means(&errors, shape, rows));
        }
        Ok(Self { layers })
    }

    /// Returns the gates of a layer's KV heads.
    pub fn layer(&self, number: usize) -> Option<&[f64]> {
        self.layers.get(&number).map(Vec::as_slice)
    }

    /// Returns the file: a line for each layer, beginning with layer 0, with a number for each KV
    /// head, separated by tabs. Layers that were not measured have `nan`.
    pub fn to_tsv(&self) -> String {
        let Some((&last, gates)) = self.layers.last_key_value() else { return String::new() };
        let unmeasured = vec![f64::NAN; gates.len()];
        let line = |number| {
            let gates = self.layers.get(&number).unwrap_or(&unmeasured).iter();
            let numbers =
                gates.map(|gate| if gate.is_nan() { "nan".into() } else { format!("{gate:.6}") });
            numbers.collect::<Vec<_>>().join("\t") + "\n"
        };
        (0..=last).map(line).collect()
    }
}

/// Returns the mean error of each group, from the sums over the rows of each query head.
fn group_means(errors: &[f64], shape: Shape, rows: usize) -> Vec<f64> {
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / (errors.len() * rows) as f64;
    errors.chunks(shape.group()).map(mean).collect()
}

/// Sums a query head's errors over its queries, if it reads only the first and the last tokens.
fn sum_errors(layer: &TraceLayer, head: usize, scale: f32) -> f64 {
    let kv_head = head / layer.shape().group();
    let keys = layer.keys.slice(s![kv_head, .., ..]);
    let values = layer.values.slice(s![kv_head, .., ..]);
    let error = |(i, query): (usize, ArrayView1<'_, f32>)| {
        let visible = layer.visible_to(i);
        let (keys, values) = (keys.slice(s![..visible, ..]), values.slice(s![..visible, ..]));
        streaming_error(
            (&query * scale).view(),
            keys,
            values,
            layer.form().for_heads(head..head + 1),
        )
    };
    layer.queries.slice(s![head, .., ..]).outer_iter().enumerate().map(error).sum()
}

/// Returns the relative error of one query's output if it reads only the first and the last tokens.
fn streaming_error(
    query: ArrayView1<'_, f32>,
    keys: ArrayView2<'_, f32>,
    values: ArrayView2<'_, f32>,
    form: SoftmaxForm<'_>,
) -> f64 {
    let tokens = keys.nrows();
    if tokens <= DuoAttention::SINK + DuoAttention::RECENT {
        return 0.0;
    }
    let mut logits = keys.dot(&query).to_vec();
    form.cap(&mut logits);
    let sink = form.sink_logit(0).unwrap_or(f32::NEG_INFINITY);
    let most = logits.iter().copied().fold(sink, f32::max);
    let sink = (sink - most).exp();
    let mut weights: Array1<f32> = logits.into_iter().map(|logit| (logit - most).exp()).collect();
    let exact = average(&weights, sink, values);
    weights.slice_mut(s![DuoAttention::SINK..tokens - DuoAttention::RECENT]).fill(0.0);
    if weights.sum() + sink == 0.0 {
        return 1.0;
    }
    let norm = |x: &Array1<f32>| f64::from(x.dot(x)).sqrt();
    let distance = norm(&(average(&weights, sink, values) - &exact));
    if distance == 0.0 { 0.0 } else { (distance / norm(&exact)).min(1.0) }
}

/// Average of values, weighted together with a sink of the value zero.
fn average(weights: &Array1<f32>, sink: f32, values: ArrayView2<'_, f32>) -> Array1<f32> {
    weights.dot(&values) / (weights.sum() + sink)
}

#[cfg(test)]
mod tests;
