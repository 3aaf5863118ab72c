//! KV heads with the selectors of the natural configuration.

use std::sync::Arc;

use ndarray::{Array3, s};
use vattention_core::{NewTokens, Pipeline, Site, Step, Tokens, step::StepThreads};
use vattention_trace::{Trace, TraceLayer};

use super::natural::Natural;
use super::population::ResidualPopulation;
use crate::{Error, Result};

/// Least number of residual tokens: moments of fewer tokens mean little.
const LEAST_RESIDUAL: usize = 128;

/// One KV head of a layer, whose selectors' indexes contain all tokens.
pub(super) struct StudyHead<'a> {
    trace: &'a Trace,
    pipeline: Pipeline,
    layer: &'a TraceLayer,
    keys: Tokens<'a>,
    values: Tokens<'a>,
}

impl<'a> StudyHead<'a> {
    pub(super) fn new(
        natural: &Natural,
        trace: &'a Trace,
        number: usize,
        layer: &'a TraceLayer,
        kv_head: usize,
    ) -> Result<Self> {
        let shape = layer.shape();
        let site = Site { seed: 0, sequence: 0, layer: number, kv_head, shape };
        let file = || "the natural configuration".into();
        let refuse = |source| Error::Pipeline { file: file(), layer: number, source };
        let mut pipeline = Pipeline::new(&Arc::new(natural.selectors()), site).map_err(refuse)?;
        let tokens = layer.keys.dim().1;
        let rows = |numbers: &'a Array3<f32>, dim: usize| {
            let all = numbers.as_slice().expect("a trace's arrays are in standard layout");
            Tokens::new(&all[kv_head * tokens * dim..][..tokens * dim], tokens, dim)
        };
        let keys = rows(&layer.keys, shape.head_dim);
        let values = rows(&layer.values, shape.value_dim);
        pipeline.append(&NewTokens { first: 0, keys, values, classes: None }).map_err(refuse)?;
        Ok(Self { trace, pipeline, layer, keys, values })
    }

    /// Returns the rows of one query, one for each member of the group.
    pub(super) fn rows(&self, query: usize) -> Result<Vec<ResidualPopulation>> {
        let site = self.pipeline.site();
        let group = site.shape.group();
        let scale = self.trace.info().scale.unwrap_or(site.shape.default_scale());
        let members = site.kv_head * group..(site.kv_head + 1) * group;
        let queries = self.layer.queries.slice(s![members.clone(), query, ..]);
        let queries: Vec<f32> = queries.iter().map(|q| q * scale).collect();
        let visible = self.layer.visible_to(query);
        let (keys, values) = (self.keys, self.values);
        let step = Step {
            site,
            queries: &queries,
            keys,
            values,
            visible,
            step: query as u32,
            form: self.layer.form().for_heads(members),
            threads: StepThreads::default(),
        };
        let reading = self.pipeline.complete(&step, &self.pipeline.choose(&step));
        let row = |member: usize| {
            let taken = reading.list(member).indices;
            let left = visible - taken.len();
            if left >= LEAST_RESIDUAL {
                return Ok(ResidualPopulation::new(&step.row(member), &taken));
            }
            let reason = format!(
                "layer {}, query {query}: sink, window and top-k leave {left} of {visible} tokens \
                 to sample; expected at least {LEAST_RESIDUAL}",
                site.layer
            );
            Err(Error::trace(self.trace.path(), reason))
        };
        (0..group).map(row).collect()
    }
}
