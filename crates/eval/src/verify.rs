//! Whether a pipeline keeps its promise on a trace: many samples of every row.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ndarray::{ArrayView1, s};
use rayon::prelude::*;
use serde::Serialize;
use vattention_core::{
    Kind, NewTokens, Pipeline, PipelineConfig, Promise, Prompt, Reading, Shape, Site, Softmax,
    Step, Tokens,
};

use crate::errors::RowError;
use crate::{Error, Exact, Layer, Result, Trace, binomial};

/// A promise is called broken when the failures seen are less probable than this, over all counts.
pub const LEVEL: f64 = 1e-6;

/// The verdict on a promise.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// The pipeline's name.
    pub pipeline: String,
    /// Trials of all query heads.
    pub trials: usize,
    /// The failure probability promised.
    pub delta: f64,
    /// What the promise rested on, at its weakest.
    pub kind: Kind,
    /// Trials in which the error of the target exceeded epsilon.
    pub violations: usize,
    /// The smallest p-value of any head.
    pub p_value: f64,
    /// The largest 95 % Clopper–Pearson upper bound of any head's failure rate.
    pub upper: f64,
    /// Whether no head's p-value is below [`LEVEL`] over the number of heads.
    pub held: bool,
    /// Every query head's own count.
    pub heads: Vec<HeadCount>,
}

/// One query head's failures. Heads that share a sample are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeadCount {
    /// The layer.
    pub layer: usize,
    /// The query head.
    pub query_head: usize,
    /// Trials in which its error exceeded epsilon.
    pub violations: usize,
    /// Trials.
    pub trials: usize,
    /// How probable that many violations are, if the failure probability is delta.
    pub p_value: f64,
}

/// Draws `trials` samples for every KV head of every layer, spread over its queries, and counts
/// how often each query head's error exceeds epsilon. A trial's number is its sequence's, so that
/// samples are independent; selectors choose once for each query, and get no feedback. `progress` is called with the trials done
/// and all of them, from any thread.
///
/// Cost: the pipeline, and f64 sums over what it reads, `trials` times per KV head; in parallel.
///
/// # Errors
/// A pipeline that promises nothing or cannot run on the trace, or a damaged trace.
pub fn verify(
    pipeline: &Arc<PipelineConfig>,
    trace: &Trace,
    trials: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Verification> {
    let promise = pipeline.estimator.as_ref().and_then(|estimator| estimator.promise());
    let Some(promise) = promise else {
        let reason =
            format!("{} promises nothing; it needs an [estimator] that does", pipeline.name);
        return Err(Error::Setting { option: "CONFIG", reason });
    };
    if trials == 0 {
        let reason = "0; expected at least 1".into();
        return Err(Error::Setting { option: "--trials", reason });
    }
    let total = trace.layers().map(|(_, layout)| trials * layout.shape.kv_heads).sum();
    let done = AtomicUsize::new(0);
    let tick = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
    let (mut heads, mut kind) = (Vec::new(), Kind::Exact);
    for (number, _) in trace.layers() {
        let layer = trace.layer(number).expect("the layer was listed")?;
        let bench = Bench::new(pipeline, &promise, number, &layer, trace.info().scale)?;
        let found = bench.run(trials, &tick);
        kind = kind.min(found.kind);
        heads.extend(found.heads);
    }
    Ok(Verification::new(pipeline.name.clone(), &promise, kind, heads))
}

impl Verification {
    fn new(pipeline: String, promise: &Promise, kind: Kind, heads: Vec<HeadCount>) -> Self {
        let upper = |head: &HeadCount| binomial::upper_bound(head.violations, head.trials, 0.05);
        let p_value = heads.iter().map(|head| head.p_value).fold(1.0, f64::min);
        Self {
            pipeline,
            trials: heads.iter().map(|head| head.trials).sum(),
            delta: promise.delta.get(),
            kind,
            violations: heads.iter().map(|head| head.violations).sum(),
            p_value,
            upper: heads.iter().map(upper).fold(0.0, f64::max),
            held: p_value >= LEVEL / heads.len() as f64,
            heads,
        }
    }
}

/// What many samples of one layer came to.
#[derive(Clone, Debug)]
pub struct LayerTrials {
    /// Every query head's own count.
    pub heads: Vec<HeadCount>,
    /// What the promise rested on, at its weakest.
    pub kind: Kind,
    /// Residual tokens in a sample, on average.
    pub mean_sampled: f64,
}

/// [`verify`] for one layer in memory, judged by any promise. `scale` as in a trace.
///
/// # Errors
/// A pipeline that cannot run on the layer.
pub fn try_layer(
    pipeline: &Arc<PipelineConfig>,
    promise: &Promise,
    layer: &Layer,
    scale: Option<f32>,
    trials: usize,
) -> Result<LayerTrials> {
    Ok(Bench::new(pipeline, promise, 0, layer, scale)?.run(trials, &|| {}))
}

/// One layer, ready for trials.
struct Bench<'a> {
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
    fn new(
        pipeline: &Arc<PipelineConfig>,
        promise: &'a Promise,
        number: usize,
        layer: &'a Layer,
        scale: Option<f32>,
    ) -> Result<Self> {
        let file = pipeline.name.clone();
        let refuse = |source| Error::Pipeline { file: file.clone(), layer: number, source };
        let shape = layer.shape();
        let scale = scale.unwrap_or(1.0 / (shape.head_dim as f32).sqrt());
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
    fn run(&self, trials: usize, tick: &(impl Fn() + Sync)) -> LayerTrials {
        let work: Vec<(usize, usize)> = (0..self.heads.len())
            .flat_map(|kv_head| (0..self.queries).map(move |query| (kv_head, query)))
            .collect();
        let run = |(kv_head, query)| self.run_query(kv_head, query, trials, tick);
        let done: Vec<QueryTrials> = work.into_par_iter().map(run).collect();
        let group = self.shape.group();
        let mut counts = vec![0; self.shape.query_heads];
        for query in &done {
            for (member, violations) in query.violations.iter().enumerate() {
                counts[query.kv_head * group + member] += violations;
            }
        }
        let count = |(query_head, violations): (usize, usize)| HeadCount {
            layer: self.number,
            query_head,
            violations,
            trials,
            p_value: binomial::p_value(violations, trials, self.promise.delta.get()),
        };
        let sampled: usize = done.iter().map(|query| query.sampled).sum();
        LayerTrials {
            heads: counts.into_iter().enumerate().map(count).collect(),
            kind: done.iter().map(|query| query.kind).min().unwrap_or(Kind::None),
            mean_sampled: sampled as f64 / (trials * self.shape.query_heads) as f64,
        }
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
        let mut found =
            QueryTrials { kv_head, violations: vec![0; group], sampled: 0, kind: Kind::Exact };
        let choice = pipeline.choose(&self.step(pipeline.site(), kv_head, query));
        for trial in (query..trials).step_by(self.queries) {
            pipeline.set_sequence(trial as u32);
            let step = self.step(pipeline.site(), kv_head, query);
            let reading = pipeline.complete(&step, &choice);
            for (member, violations) in found.violations.iter_mut().enumerate() {
                *violations += usize::from(self.is_broken(&step, member, &reading));
            }
            for list in (0..group).map(|member| reading.list(member)) {
                found.kind = found.kind.min(list.certificate.kind);
                found.sampled += list.sampled;
            }
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
