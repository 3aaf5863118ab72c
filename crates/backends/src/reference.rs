//! The reference backend: f64, ndarray, one thread, no optimizations.
//!
//! Its selectors index a token only when it becomes visible to a query. Several queries with
//! growing limits are therefore equivalent to decoding token by token, and a selector whose picks
//! depend on tokens beyond the limit picks other tokens here than on other backends.

use std::sync::Arc;

use ndarray::{Array1, Array2, Axis};
use vattention_core::{
    Attention, Backend, Options, PipelineConfig, Result, Row, Shape, Tokens, engine::Timings,
    pipeline::List, step::Softmax,
};

use crate::executor::{Executor, HeadInput, HeadOutput, Indexing, RowSums};
use crate::layer::{Layer, build_pipelines};
use crate::workers::Workers;

/// Attention by its definition, in f64. `threads` is ignored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn summary(&self) -> &'static str {
        "f64, one thread: the results that other backends are checked against"
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        let pipelines = build_pipelines(pipeline, layer, shape, options)?;
        Ok(Box::new(Layer::new(pipelines, options, Workers::Serial, *self)?))
    }
}

impl Executor for Reference {
    const FALLIBLE: bool = false;

    fn indexing(&self) -> Indexing {
        Indexing::Lazy
    }

    fn execute(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        Ok(workers.map(heads, |head| execute(&head)))
    }

    fn fork(&self, _len: usize) -> Result<Self> {
        Ok(*self)
    }
}

fn execute(head: &HeadInput<'_>) -> HeadOutput {
    let step = &head.step;
    let reading = head.pipeline.complete(step, &head.pipeline.choose(step));
    let mut rows = Vec::with_capacity(step.site.shape.group());
    for (i, read) in reading.reads().iter().enumerate() {
        let list = read.list();
        let (keys, values) = (gather(step.keys, &list), gather(step.values, &list));
        let query_heads = reading.readers(i).map(|member| step.row(member));
        rows.extend(query_heads.map(|row| attend_row(&keys, &values, &row, &list)));
    }
    HeadOutput::new(head, rows, &reading, Timings::default())
}

/// Computes `N = Σ e v / p` and `D = e^sink + Σ e / p` of one query head, from keys
/// `[listed, head_dim]` and values `[listed, value_dim]`.
fn attend_row(keys: &Array2<f64>, values: &Array2<f64>, row: &Row<'_>, list: &List) -> RowSums {
    let query: Array1<f64> = row.query().iter().map(|&q| f64::from(q)).collect();
    let mut logits = keys.dot(&query);
    if let Some(cap) = row.form().soft_cap.map(f64::from) {
        logits.mapv_inplace(|logit| cap * (logit / cap).tanh());
    }
    let sink = row.sink_logit().map_or(f64::NEG_INFINITY, f64::from);
    let shift = logits.fold(sink, |a, &b| a.max(b));
    let p: Array1<f64> = list.probabilities.iter().map(|&p| f64::from(p)).collect();
    let weights = logits.mapv(|logit| (logit - shift).exp()) / p;
    let numerator = (values * &weights.view().insert_axis(Axis(1))).sum_axis(Axis(0));
    let denominator = (sink - shift).exp() + weights.sum();
    RowSums {
        sums: Softmax::from_sums(shift, denominator, numerator.to_vec()),
        logits: logits.to_vec(),
    }
}

fn gather(tokens: Tokens<'_>, list: &List) -> Array2<f64> {
    tokens.gather(list.indices.iter().map(|&token| token as usize)).mapv(f64::from)
}
