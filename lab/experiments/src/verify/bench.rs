//! Trials on one layer: many samples of each of its rows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ndarray::s;
use rayon::prelude::*;
use vattention_core::{
    Goal, NewTokens, Pipeline, PipelineConfig, RowsView, Shape, Site, SoftmaxForm, Step, Tokens,
    plugin::PromptQueries, step::StepThreads,
};
use vattention_trace::TraceLayer;

use super::trials::{RowTrials, TrialRecorder};
use crate::{Error, Exact, Result};

/// A layer of a trace, and the same layer with the keys and values of a cache.
#[derive(Clone, Copy)]
pub(super) struct BenchLayer<'a> {
    pub(super) given: &'a TraceLayer,
    pub(super) stored: &'a TraceLayer,
}

/// One layer that is prepared for trials.
pub(super) struct TrialBench<'a> {
    goal: &'a Goal,
    shape: Shape,
    queries: usize,
    /// Rows in (query, query head) order.
    exact: Vec<Exact>,
    visible: Vec<usize>,
    /// KV heads that take part, by their numbers.
    heads: BTreeMap<usize, BenchHead<'a>>,
}

/// One KV head: its pipeline, whose indexes contain all tokens, and its rows.
struct BenchHead<'a> {
    pipeline: Pipeline,
    keys: Tokens<'a>,
    values: Tokens<'a>,
    /// Scaled queries of the group, `[queries][group · head_dim]`.
    queries: Vec<Vec<f32>>,
    form: SoftmaxForm<'a>,
}

impl<'a> TrialBench<'a> {
    pub(super) fn new(
        pipeline: &Arc<PipelineConfig>,
        goal: &'a Goal,
        number: usize,
        layers: BenchLayer<'a>,
        scale: Option<f32>,
        kv_heads: impl Iterator<Item = usize>,
    ) -> Result<Self> {
        let file = pipeline.name.clone();
        let refuse = |source| Error::Pipeline { file: file.clone(), layer: number, source };
        let layer = layers.given;
        let shape = layer.shape();
        let scale = scale.unwrap_or(shape.default_scale());
        let (queries, tokens) = (layer.queries.dim().1, layer.keys.dim().1);
        let head = |kv_head: usize| -> Result<(usize, BenchHead<'a>)> {
            let site = Site { seed: pipeline.seed, sequence: 0, layer: number, kv_head, shape };
            let pipeline = Pipeline::new(pipeline, site).map_err(refuse)?;
            Ok((kv_head, BenchHead::new(pipeline, layers, kv_head, scale).map_err(refuse)?))
        };
        let reference = if goal.reference.is_stored() { layers.stored } else { layer };
        Ok(Self {
            goal,
            shape,
            queries,
            exact: Exact::rows(reference, &shape, scale, queries),
            visible: layer.visible.clone().unwrap_or_else(|| vec![tokens; queries]),
            heads: kv_heads.map(head).collect::<Result<_>>()?,
        })
    }

    /// Runs `trials` trials of a KV head, with queries in parallel; returns the trials of each
    /// query and group member.
    pub(super) fn run(
        &self,
        kv_head: usize,
        trials: usize,
        tick: &(impl Fn() + Sync),
    ) -> Vec<Vec<RowTrials>> {
        let queries = (0..self.queries).into_par_iter();
        queries.map(|query| self.run_query(kv_head, query, trials, tick)).collect()
    }

    /// Runs the trials of one query, which is every `queries`-th trial; returns the trials of each
    /// group member.
    fn run_query(
        &self,
        kv_head: usize,
        query: usize,
        trials: usize,
        tick: &impl Fn(),
    ) -> Vec<RowTrials> {
        let mut pipeline = self.heads[&kv_head].pipeline.clone();
        let site = *pipeline.site();
        let step = self.step(&site, kv_head, query);
        let choice = pipeline.choose(&step);
        let first = query * self.shape.query_heads + kv_head * self.shape.group();
        let exact = &self.exact[first..][..self.shape.group()];
        let recorder = |(row, exact)| TrialRecorder::new(row, exact, self.goal);
        let rows = step.rows();
        let mut members: Vec<TrialRecorder<'_>> = rows.iter().zip(exact).map(recorder).collect();
        for trial in (query..trials).step_by(self.queries) {
            pipeline.set_sequence(trial as u32);
            let site = *pipeline.site();
            let step = self.step(&site, kv_head, query);
            let reading = pipeline.complete(&step, &choice);
            for (member, recorder) in members.iter_mut().enumerate() {
                recorder.add(&pipeline, &reading, member);
            }
            tick();
        }
        members.into_iter().map(TrialRecorder::finish).collect()
    }

    /// Creates the step of one query of one KV head.
    fn step<'s>(&'s self, site: &'s Site, kv_head: usize, query: usize) -> Step<'s> {
        let head = &self.heads[&kv_head];
        Step {
            site,
            queries: &head.queries[query],
            keys: head.keys,
            values: head.values,
            visible: self.visible[query],
            step: query as u32,
            form: head.form,
            threads: StepThreads::default(),
        }
    }
}

impl<'a> BenchHead<'a> {
    fn new(
        mut pipeline: Pipeline,
        layers: BenchLayer<'a>,
        kv_head: usize,
        scale: f32,
    ) -> vattention_core::Result<Self> {
        let BenchLayer { given, stored: layer } = layers;
        let (_, tokens, head_dim) = layer.keys.dim();
        let (_, _, value_dim) = layer.values.dim();
        let rows = |numbers: &'a ndarray::Array3<f32>, dim: usize, part: Range<usize>| {
            let all = numbers.as_slice().expect("a trace's arrays are in standard layout");
            let (first, count) = (kv_head * tokens + part.start, part.len());
            Tokens::new(&all[first * dim..][..count * dim], count, dim)
        };
        let both = |part: Range<usize>| {
            (rows(&layer.keys, head_dim, part.clone()), rows(&layer.values, value_dim, part))
        };
        let append = |pipeline: &mut Pipeline, part: Range<usize>| {
            let (keys, values) = both(part.clone());
            let classes = layer.classes_of(part.clone());
            let new = NewTokens { first: part.start, keys, values, classes };
            pipeline.append(&new)?;
            let given_rows = |numbers: &'a ndarray::Array3<f32>| {
                RowsView::from(numbers.slice(s![kv_head, part.clone(), ..]))
            };
            pipeline.measure_rounding(given_rows(&given.keys), given_rows(&given.values), &new)
        };
        let site = *pipeline.site();
        let group = site.shape.group();
        let members = kv_head * group..(kv_head + 1) * group;
        let form = layer.form().for_heads(members.clone());
        let end = layer.prompt_end();
        append(&mut pipeline, 0..end)?;
        let (keys, values) = both(0..end);
        if let Some(prompt) = &layer.prompt {
            let queries = prompt.slice(s![members.clone(), .., ..]).mapv(|q| q * scale);
            let queries = queries.view();
            pipeline.observe(&PromptQueries { site: &site, queries, keys, values, form });
        }
        if end < tokens {
            append(&mut pipeline, end..tokens)?;
        }
        let (keys, values) = both(0..tokens);
        let query =
            |t| layer.queries.slice(s![members.clone(), t, ..]).iter().map(|q| q * scale).collect();
        let queries = (0..layer.queries.dim().1).map(query).collect();
        Ok(Self { pipeline, keys, values, queries, form })
    }
}
