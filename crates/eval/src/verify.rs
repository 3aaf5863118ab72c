//! Whether a pipeline keeps its promise on a trace: many samples of every row.

mod bench;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use vattention_core::{Kind, PipelineConfig, Promise};

use crate::{Error, Layer, Result, Trace, binomial};
use bench::Bench;

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
    /// Whether no head's p-value is below [`LEVEL`] over the number of heads, and no row's below
    /// [`LEVEL`] over the number of rows.
    pub held: bool,
    /// Every query head's own count.
    pub heads: Vec<HeadCount>,
    /// The row, a head at one query, with the smallest p-value.
    #[serde(skip)]
    pub worst_row: RowCount,
}

/// The failures of one query head at one query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowCount {
    /// The layer.
    pub layer: usize,
    /// The query head.
    pub query_head: usize,
    /// The query.
    pub query: usize,
    /// Trials in which its error exceeded epsilon.
    pub violations: usize,
    /// Trials.
    pub trials: usize,
    /// How probable that many violations are, if the failure probability is delta.
    pub p_value: f64,
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
    trials: u32,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Verification> {
    let Some(promise) = pipeline.promise() else {
        let reason =
            format!("{} promises nothing; it needs an [estimator] that does", pipeline.name);
        return Err(Error::Setting { option: "CONFIG", reason });
    };
    let trials = enough(trials, trace, &promise)?;
    let total = trace.layers().map(|(_, layout)| trials * layout.shape.kv_heads).sum();
    let done = AtomicUsize::new(0);
    let tick = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
    let (mut heads, mut rows, mut kind) = (Vec::new(), Vec::new(), Kind::Exact);
    for (number, layout) in trace.layers() {
        trace.expect_queries(number, &layout)?;
        let layer = trace.layer(number).expect("the layer was listed")?;
        let bench = Bench::new(pipeline, &promise, number, &layer, trace.info().scale)?;
        let found = bench.run(trials, &tick);
        kind = kind.min(found.kind);
        heads.extend(found.heads);
        rows.extend(found.rows);
    }
    Ok(Verification::new(pipeline.name.clone(), &promise, kind, heads, &rows))
}

impl Verification {
    fn new(
        pipeline: String,
        promise: &Promise,
        kind: Kind,
        heads: Vec<HeadCount>,
        rows: &[RowCount],
    ) -> Self {
        let upper = |head: &HeadCount| binomial::upper_bound(head.violations, head.trials, 0.05);
        let p_value = heads.iter().map(|head| head.p_value).fold(1.0, f64::min);
        let worst_row = rows.iter().min_by(|a, b| a.p_value.total_cmp(&b.p_value)).copied();
        let worst_row = worst_row.unwrap_or_default();
        Self {
            pipeline,
            trials: heads.iter().map(|head| head.trials).sum(),
            delta: promise.delta.get(),
            kind,
            violations: heads.iter().map(|head| head.violations).sum(),
            p_value,
            upper: heads.iter().map(upper).fold(0.0, f64::max),
            held: p_value >= LEVEL / heads.len() as f64
                && worst_row.p_value >= LEVEL / rows.len() as f64,
            heads,
            worst_row,
        }
    }
}

/// Refuses so few trials that no count of them could contradict delta.
fn enough(trials: u32, trace: &Trace, promise: &Promise) -> Result<usize> {
    let heads: usize = trace.layers().map(|(_, layout)| layout.shape.query_heads).sum();
    let least = ((LEVEL / heads as f64).ln() / promise.delta.get().ln()).ceil();
    if f64::from(trials) >= least {
        return Ok(trials as usize);
    }
    let delta = promise.delta.get();
    let reason = format!("{trials} cannot contradict delta = {delta}; expected at least {least}");
    Err(Error::Setting { option: "--trials", reason })
}

/// What many samples of one layer came to.
#[derive(Clone, Debug)]
pub struct LayerTrials {
    /// Every query head's own count.
    pub heads: Vec<HeadCount>,
    /// Every row's own count.
    pub rows: Vec<RowCount>,
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
