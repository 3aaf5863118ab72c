//! Whether a pipeline keeps its promise on a trace: many samples of every row.

mod bench;
mod cause;
mod checked_row;
mod count;
mod epsilon;
mod trials;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use vattention_core::{Assumptions, Demand, Kind, PipelineConfig, Promise, Scope};

use crate::metrics::{Bars, CountTest, Evidence, LEVEL};
use crate::{Error, Result};
use bench::Bench;
use vattention_trace::{Trace, TraceLayer};

pub use cause::{Cause, Failures};
pub use count::{Count, HeadCount, StepCount};
pub use epsilon::{at_delta, at_epsilon};

/// The verdict on a promise, or on error bars where a size is asked for.
///
/// It is about each query head, or about all of a layer together, as the promise's scope says. It is
/// violated where a p-value is below [`LEVEL`] over the number of counts of its kind: of heads (of
/// layers), or of rows, which are heads (layers) at one query.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// The pipeline's name.
    pub pipeline: String,
    /// What is asked of its samples.
    pub demand: Demand,
    /// Trials of all that the promise is about.
    pub trials: usize,
    /// What the promise rested on, at its weakest.
    pub kind: Kind,
    /// What any certificate took for granted.
    pub assumes: Assumptions,
    /// Share of the query heads' trials whose last look asked for a larger sample.
    pub not_held: f64,
    /// Trials in which the error of the target exceeded epsilon; or, where a size was asked for or a limit
    /// did not suffice, its error bar.
    pub violations: usize,
    /// The error bars of the query heads' trials.
    pub bars: Bars,
    /// The largest 95 % Clopper–Pearson upper bound of any head's (of any layer's) failure rate.
    pub upper: f64,
    /// The head (layer) with the smallest p-value.
    pub worst: Count,
    /// What it is tested against.
    pub test: CountTest,
    /// The row with the smallest p-value.
    pub worst_row: Count,
    /// What it is tested against; its trials are the fewest of any row.
    pub row_test: CountTest,
    /// What the violations of heads (of layers) say of delta.
    pub evidence: EvidenceCounts,
    /// Whether nothing contradicts the promise.
    pub held: bool,
    /// Why not.
    pub fault: Option<Fault>,
    /// Every query head's own count.
    pub heads: Vec<HeadCount>,
    /// Every layer's count of its heads together, if the promise is about that.
    pub steps: Vec<StepCount>,
}

/// Of how many heads (layers) the violations say what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EvidenceCounts {
    /// [`Evidence::WithinDelta`].
    pub within_delta: usize,
    /// [`Evidence::AboveDelta`].
    pub above_delta: usize,
    /// [`Evidence::Contradicted`].
    pub contradicted: usize,
}

/// Where a violated promise fails most, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// The layer.
    pub layer: usize,
    /// The query head.
    pub query_head: usize,
    /// What failed in most of its samples that violated the promise.
    pub cause: Cause,
    /// In what share of them.
    pub share: f64,
}

/// Draws `trials` samples for every KV head of every layer, spread over its queries, and counts
/// how often each query head's error exceeds epsilon, or its error bar. A trial's number is its sequence's, so that
/// samples are independent; selectors choose once for each query, unless one of them draws, and get
/// no feedback. `progress` is called with the trials done and all of them, from any thread.
///
/// Cost: the pipeline, and f64 sums over what it reads, `trials` times per KV head; in parallel.
///
/// # Errors
/// A pipeline without an estimator or that cannot run on the trace, or a damaged trace.
pub fn verify(
    pipeline: &Arc<PipelineConfig>,
    trace: &Trace,
    trials: u32,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Verification> {
    let demand = demand(pipeline)?;
    let trials = enough(trials, trace, &demand)?;
    let total = trace.layers().map(|(_, layout)| trials * layout.shape.kv_heads).sum();
    let done = AtomicUsize::new(0);
    let tick = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
    let mut found = Vec::new();
    for (number, layout) in trace.layers() {
        trace.expect_queries(number, &layout)?;
        let layer = trace.layer(number).expect("the layer was listed")?;
        let bench = Bench::new(pipeline, &demand, number, &layer, trace.info().scale)?;
        found.push(bench.run(trials, &tick));
    }
    Ok(Verification::new(pipeline.name.clone(), demand, found))
}

impl Verification {
    fn new(pipeline: String, demand: Demand, layers: Vec<LayerTrials>) -> Self {
        let (mut heads, mut rows, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for layer in layers {
            heads.extend(layer.heads);
            rows.extend(layer.rows);
            steps.extend(layer.step);
        }
        let counts: Vec<Count> = match demand.scope {
            Scope::Row => heads.iter().map(Count::from).collect(),
            Scope::Step => steps.iter().map(Count::from).collect(),
        };
        let delta = demand.delta.get();
        let (worst, test) = worst_count(&counts, delta);
        let (worst_row, row_test) = worst_count(&rows, delta);
        let violated = [(worst, test), (worst_row, row_test)];
        let violated = violated.into_iter().find(|(count, test)| count.p_value < test.limit);
        let all = |of: fn(&HeadCount) -> usize| heads.iter().map(of).sum::<usize>() as f64;
        Self {
            pipeline,
            demand,
            trials: counts.iter().map(|count| count.trials).sum(),
            kind: heads.iter().map(|head| head.kind).min().unwrap_or(Kind::None),
            assumes: heads.iter().fold(Assumptions::NONE, |all, head| all | head.assumes),
            not_held: 1.0 - all(|head| head.held) / all(|head| head.trials),
            violations: counts.iter().map(|count| count.violations).sum(),
            bars: heads.iter().map(|head| head.bars).sum(),
            upper: counts.iter().map(Count::upper).fold(0.0, f64::max),
            worst,
            test,
            worst_row,
            row_test,
            evidence: counts.iter().map(|count| count.evidence(delta, test.limit)).collect(),
            held: violated.is_none(),
            fault: violated.and_then(|(count, _)| Fault::find(&heads, &count)),
            heads,
            steps,
        }
    }

    /// What the violations of a head (of a layer) say of delta.
    pub fn evidence_of(&self, count: impl Into<Count>) -> Evidence {
        count.into().evidence(self.demand.delta.get(), self.test.limit)
    }
}

/// Of at least one count, the one with the smallest p-value, and what all are tested against.
fn worst_count(counts: &[Count], delta: f64) -> (Count, CountTest) {
    let order = |a: &Count, b: &Count| {
        a.p_value.total_cmp(&b.p_value).then(b.violations.cmp(&a.violations))
    };
    let worst = counts.iter().copied().min_by(order).unwrap_or_default();
    let trials = counts.iter().map(|count| count.trials).min().unwrap_or(0);
    (worst, CountTest::new(trials, delta, LEVEL / counts.len() as f64))
}

impl FromIterator<Evidence> for EvidenceCounts {
    fn from_iter<I: IntoIterator<Item = Evidence>>(all: I) -> Self {
        let mut tally = Self::default();
        for evidence in all {
            *match evidence {
                Evidence::WithinDelta => &mut tally.within_delta,
                Evidence::AboveDelta => &mut tally.above_delta,
                Evidence::Contradicted => &mut tally.contradicted,
            } += 1;
        }
        tally
    }
}

impl Fault {
    /// In the head with most violations, of those that `worst` is about.
    fn find(heads: &[HeadCount], worst: &Count) -> Option<Self> {
        let about = |head: &&HeadCount| {
            head.layer == worst.layer
                && worst.query_head.is_none_or(|query_head| query_head == head.query_head)
        };
        let head = heads.iter().filter(about).max_by_key(|head| head.violations)?;
        let cause = head.failures.most();
        let share = head.failures.of(cause) as f64 / head.violations as f64;
        Some(Self { layer: head.layer, query_head: head.query_head, cause, share })
    }
}

/// Refuses so few trials that no count of them could contradict delta.
fn enough(trials: u32, trace: &Trace, demand: &Demand) -> Result<usize> {
    let heads: usize = trace.layers().map(|(_, layout)| layout.shape.query_heads).sum();
    let least = ((LEVEL / heads as f64).ln() / demand.delta.get().ln()).ceil();
    if f64::from(trials) >= least {
        return Ok(trials as usize);
    }
    let delta = demand.delta.get();
    let reason = format!("{trials} cannot contradict delta = {delta}; expected at least {least}");
    Err(Error::Setting { option: "--trials", reason })
}

/// What many samples of one layer came to.
#[derive(Clone, Debug)]
pub struct LayerTrials {
    /// Every query head's own count.
    pub heads: Vec<HeadCount>,
    /// Every row's own count.
    pub rows: Vec<Count>,
    /// All query heads together, if the promise is about that.
    pub step: Option<StepCount>,
    /// Tokens drawn at random for a query head, on average.
    pub mean_sampled: f64,
}

/// [`verify`] for one layer in memory, judged by what the pipeline demands.
pub(crate) fn layer_trials(
    pipeline: &Arc<PipelineConfig>,
    number: usize,
    layer: &TraceLayer,
    scale: Option<f32>,
    trials: usize,
    tick: &(impl Fn() + Sync),
) -> Result<LayerTrials> {
    let demand = demand(pipeline)?;
    Ok(Bench::new(pipeline, &demand, number, layer, scale)?.run(trials, tick))
}

/// What a pipeline demands.
fn demand(pipeline: &PipelineConfig) -> Result<Demand> {
    pipeline.parts().find_map(PipelineConfig::demand).ok_or_else(|| {
        let reason = format!("{} promises nothing: it has no [estimator]", pipeline.name);
        Error::Setting { option: "CONFIG", reason }
    })
}

/// [`verify`] for one layer in memory, judged by any promise. `scale` as in a trace.
///
/// # Errors
/// A pipeline that cannot run on the layer.
pub fn try_layer(
    pipeline: &Arc<PipelineConfig>,
    promise: &Promise,
    layer: &TraceLayer,
    scale: Option<f32>,
    trials: usize,
) -> Result<LayerTrials> {
    Ok(Bench::new(pipeline, &Demand::of(*promise), 0, layer, scale)?.run(trials, &|| {}))
}
