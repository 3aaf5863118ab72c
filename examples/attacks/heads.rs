//! Conversion of heads to layers of traces, and verdicts on pipelines.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ndarray::Array3;
use vattention::experiments::{Results, Verification, try_layer, verify};
use vattention::trace::{Trace, TraceInfo, TraceLayer, write_trace};
use vattention::{PipelineConfig, Storage};
use vattention_testkit::promises::{HeadData, VALUE_DIM};

/// A layer with one query, whose KV heads are heads of one shape.
pub(crate) fn layer(heads: &[HeadData]) -> TraceLayer {
    let (group, dim) = (heads[0].group, heads[0].head_dim);
    let all = |part: fn(&HeadData) -> &Vec<f32>| heads.iter().flat_map(part).copied().collect();
    let tokens = heads[0].values.len() / VALUE_DIM;
    let shaped = |shape, numbers| Array3::from_shape_vec(shape, numbers).unwrap();
    TraceLayer {
        queries: shaped((heads.len() * group, 1, dim), all(|head| &head.queries)),
        keys: shaped((heads.len(), tokens, dim), all(|head| &head.keys)),
        values: shaped((heads.len(), tokens, VALUE_DIM), all(|head| &head.values)),
        visible: None,
        prompt: None,
        prompt_tokens: None,
        classes: None,
        soft_cap: None,
        sink_logits: None,
    }
}

/// Writes a layer as a trace.
pub(crate) fn write(path: &Path, layer: TraceLayer) {
    let info = TraceInfo { scale: Some(1.0), ..TraceInfo::default() };
    write_trace(path, &info, &BTreeMap::from([(0, layer)]), Storage::F32).unwrap();
}

/// Tests a pipeline with another seed on a trace, and returns the verdict.
pub(crate) fn judge(
    pipeline: &PipelineConfig,
    seed: u64,
    path: &Path,
    trials: u32,
) -> AttackVerdict {
    let pipeline = Arc::new(PipelineConfig { seed, ..pipeline.clone() });
    let trace = Trace::open(path).unwrap();
    verify(&pipeline, &trace, trials, &Results::default(), &|_, _| {}).unwrap().into()
}

/// Reported part of a verdict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttackVerdict {
    pub(crate) worst_head: f64,
    pub(crate) worst_row: f64,
    pub(crate) pooled: f64,
    pub(crate) held: bool,
    pub(crate) read: f64,
}

impl From<Verification> for AttackVerdict {
    fn from(found: Verification) -> Self {
        let rate = |violations: usize, trials: usize| violations as f64 / trials as f64;
        let read: f64 = found.heads.iter().map(|head| head.density).sum();
        Self {
            worst_head: rate(found.worst.violations, found.worst.trials),
            worst_row: rate(found.worst_row.violations, found.worst_row.trials),
            pooled: found.violations.share(),
            held: found.held,
            read: read / found.heads.len() as f64,
        }
    }
}

/// Gain of the attacker for each KV head, the largest gain of its query heads. The gain of a query
/// head is its violation rate plus a second term: the `1 − delta` quantile of its error, divided by
/// epsilon and capped at 10. The second term can grow before any sample violates the promise.
pub(crate) fn gains(
    pipeline: &PipelineConfig,
    seed: u64,
    heads: &[HeadData],
    trials: usize,
) -> Vec<f64> {
    let promise = pipeline.promise().expect("expected a pipeline with a promise");
    let pipeline = Arc::new(PipelineConfig { seed, ..pipeline.clone() });
    let found = try_layer(&pipeline, &promise, &layer(heads), Some(1.0), trials).unwrap();
    let gain = |head: &vattention::experiments::HeadCount| {
        let rate = head.violations as f64 / head.trials as f64;
        rate + (head.error_at_delta / promise.epsilon.get()).min(10.0)
    };
    let groups = found.heads.chunks(heads[0].group);
    groups.map(|group| group.iter().map(gain).fold(0.0, f64::max)).collect()
}
