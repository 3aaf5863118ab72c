//! One layer on the bench: many samples of each of its rows.

use std::sync::Arc;

use ndarray::{ArrayView1, s};
use rayon::prelude::*;
use vattention_core::{
    Kind, NewTokens, Pipeline, PipelineConfig, Promise, Prompt, Reading, Shape, Site, Softmax,
    Step, Tokens,
};

use super::{HeadCount, LayerTrials, RowCount};
use crate::errors::RowError;
use crate::{Error, Exact, Layer, Result, binomial};

/// One layer, ready for trials.
pub(super) struct Bench<'a> {
    promise: &'a Promise,
    number: usize,
    shape: Shape,
    queries: usize,
    /// Rows in (query, query head) order.
    exact: Vec<Exact>,
    visible: Vec<usize>,
    heads: Vec<Head<'a>>,
}

/// One KV head: its pipeline, which has seen all tokens, and its rows.
struct Head<'a> {
    pipeline: Pipeline,
    keys: Tokens<'a>,
    values: Tokens<'a>,
    /// The group's queries, scaled, `[queries][group · head_dim]`.
    queries: Vec<Vec<f32>>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        pipeline: &Arc<PipelineConfig>,
        promise: &'a Promise,
        number: usize,
        layer: &'a Layer,
        scale: Option<f32>,
    ) -> Result<Self> {
        let file = pipeline.name.clone();
        let refuse = |source| Error::Pipeline { file: file.clone(), layer: number, source };
        let shape = layer.shape();
        let scale = scale.unwrap_or(shape.default_scale());
        let (queries, tokens) = (layer.queries.dim().1, layer.keys.dim().1);
        let head = |kv_head: usize| -> Result<Head<'a>> {
            let site = Site { seed: pipeline.seed, sequence: 0, layer: number, kv_head, shape };
            let pipeline = Pipeline::new(pipeline, site).map_err(refuse)?;
            Ok(Head::new(pipeline, layer, kv_head, scale))
        };
        Ok(Self {
            promise,
            number,
            shape,
            queries,
            exact: Exact::rows(layer, &shape, scale, queries),
            visible: layer.visible.clone().unwrap_or_else(|| vec![tokens; queries]),
            heads: (0..shape.kv_heads).map(head).collect::<Result<_>>()?,
        })
    }

    /// Runs `trials` trials of every KV head, all queries in parallel.
    pub(super) fn run(&self, trials: usize, tick: &(impl Fn() + Sync)) -> LayerTrials {
        let work: Vec<(usize, usize)> = (0..self.heads.len())
            .flat_map(|kv_head| (0..self.queries).map(move |query| (kv_head, query)))
            .collect();
        let run = |(kv_head, query)| self.run_query(kv_head, query, trials, tick);
        let done: Vec<QueryTrials> = work.into_par_iter().map(run).collect();
        let rows: Vec<RowCount> = done.iter().flat_map(|query| self.row_counts(query)).collect();
        let head = |query_head| {
            let own = || rows.iter().filter(move |row| row.query_head == query_head);
            let violations = own().map(|row| row.violations).sum();
            let trials = own().map(|row| row.trials).sum();
            let p_value = binomial::p_value(violations, trials, self.promise.delta.get());
            HeadCount { layer: self.number, query_head, violations, trials, p_value }
        };
        let sampled: usize = done.iter().map(|query| query.sampled).sum();
        LayerTrials {
            heads: (0..self.shape.query_heads).map(head).collect(),
            kind: done.iter().map(|query| query.kind).min().unwrap_or(Kind::None),
            mean_sampled: sampled as f64 / (trials * self.shape.query_heads) as f64,
            rows,
        }
    }

    /// The counts of a query's rows.
    fn row_counts(&self, found: &QueryTrials) -> Vec<RowCount> {
        let first = found.kv_head * self.shape.group();
        let count = |(member, &violations): (usize, &usize)| RowCount {
            layer: self.number,
            query_head: first + member,
            query: found.query,
            violations,
            trials: found.trials,
            p_value: binomial::p_value(violations, found.trials, self.promise.delta.get()),
        };
        found.violations.iter().enumerate().map(count).collect()
    }

    /// The trials of one query: every `queries`-th.
    fn run_query(
        &self,
        kv_head: usize,
        query: usize,
        trials: usize,
        tick: &impl Fn(),
    ) -> QueryTrials {
        let group = self.shape.group();
        let mut pipeline = self.heads[kv_head].pipeline.clone();
        let violations = vec![0; group];
        let mut found =
            QueryTrials { kv_head, query, trials: 0, violations, sampled: 0, kind: Kind::Exact };
        let choice = pipeline.choose(&self.step(pipeline.site(), kv_head, query));
        for trial in (query..trials).step_by(self.queries) {
            pipeline.set_sequence(trial as u32);
            let step = self.step(pipeline.site(), kv_head, query);
            let reading = pipeline.complete(&step, &choice);
            for (member, violations) in found.violations.iter_mut().enumerate() {
                *violations += usize::from(self.is_broken(&step, member, &reading));
            }
            for report in (0..group).map(|member| reading.report(member)) {
                found.kind = found.kind.min(report.certificate.kind);
                found.sampled += report.sampled;
            }
            found.trials += 1;
            tick();
        }
        found
    }

    /// One query of one KV head.
    fn step<'s>(&'s self, site: &'s Site, kv_head: usize, query: usize) -> Step<'s> {
        let head = &self.heads[kv_head];
        Step {
            site,
            queries: &head.queries[query],
            keys: head.keys,
            values: head.values,
            visible: self.visible[query],
            step: query as u32,
        }
    }

    /// Whether the error of one member exceeds epsilon.
    fn is_broken(&self, step: &Step<'_>, member: usize, reading: &Reading) -> bool {
        let sums = sums(step, member, reading);
        let head = step.site.kv_head * self.shape.group() + member;
        let exact = &self.exact[step.step as usize * self.shape.query_heads + head];
        let output: Vec<f32> = sums.output().into_iter().map(|x| x as f32).collect();
        let output = ArrayView1::from(&output);
        RowError::new(output, sums.log_denominator(), exact).exceeds(self.promise)
    }
}

/// What the samples of one query came to.
struct QueryTrials {
    kv_head: usize,
    query: usize,
    trials: usize,
    /// Of each member of the group.
    violations: Vec<usize>,
    /// Residual tokens drawn, over members and trials.
    sampled: usize,
    kind: Kind,
}

/// `N^` and `D^` of one member, in f64.
fn sums(step: &Step<'_>, member: usize, reading: &Reading) -> Softmax {
    let (row, list) = (step.row(member), reading.list(member));
    let mut sums = Softmax::new(step.values.dim());
    let mut value = vec![0.0; step.values.dim()];
    for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
        let token = token as usize;
        step.values.copy_row(token, &mut value);
        sums.add(f64::from(row.logit(token)), 1.0 / f64::from(p), &value);
    }
    sums
}

impl<'a> Head<'a> {
    fn new(mut pipeline: Pipeline, layer: &'a Layer, kv_head: usize, scale: f32) -> Self {
        let (_, tokens, head_dim) = layer.keys.dim();
        let (_, _, value_dim) = layer.values.dim();
        let rows = |numbers: &'a ndarray::Array3<f32>, dim: usize| {
            let all = numbers.as_slice().expect("a trace's arrays are in standard layout");
            Tokens::new(&all[kv_head * tokens * dim..][..tokens * dim], tokens, dim)
        };
        let (keys, values) = (rows(&layer.keys, head_dim), rows(&layer.values, value_dim));
        let site = *pipeline.site();
        let group = site.shape.group();
        let members = kv_head * group..(kv_head + 1) * group;
        pipeline.append(&NewTokens { first: 0, keys, values });
        if let Some(prompt) = &layer.prompt {
            let queries = prompt.slice(s![members.clone(), .., ..]).mapv(|q| q * scale);
            pipeline.observe(&Prompt { site: &site, queries: queries.view(), keys, values });
        }
        let query =
            |t| layer.queries.slice(s![members.clone(), t, ..]).iter().map(|q| q * scale).collect();
        let queries = (0..layer.queries.dim().1).map(query).collect();
        Self { pipeline, keys, values, queries }
    }
}
