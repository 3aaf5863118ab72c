//! Test of a pipeline's promise on a trace, by many samples of every row.

mod bench;
mod cause;
mod checked_row;
mod count;
mod epsilon;
mod judged_rows;
mod layer_counts;
mod rows_together;
mod trials;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{
    Goal, Kind, PipelineConfig, Promise,
    promise::{Assumptions, Scope},
};

use crate::classes::expect_classes;
use crate::metrics::{
    Bars, BarsSummary, CountTest, Evidence, LEVEL, SUSPICION, ViolationCount, binomial,
};
use crate::{Error, Result, Results};
use bench::{BenchLayer, TrialBench};
use layer_counts::{KvHeadTrials, LayerCounts};
use vattention_trace::{Layout, Trace, TraceLayer};

pub use cause::{FailureCause, FailureCounts};
pub use count::{HeadCount, StepCount, TrialCount};
pub use epsilon::{with_delta, with_epsilon};
pub use judged_rows::JudgedRows;
pub use layer_counts::LayerTrials;
pub use rows_together::{RowsTogether, SampleUnit, UnitsViolated};

/// Verdict on a promise, or on error bars if the sample size is fixed.
///
/// Under scope `row`, a promise is about each query head; under scope `step`, about all query heads
/// of a layer together. Below, *head (layer)* means a query head under scope `row`, a layer under
/// scope `step`. Each [`PromiseTest`] contradicts a kept promise with a probability of at most
/// [`LEVEL`].
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Verification {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Goal of the pipeline's estimator.
    pub goal: Goal,
    /// Weakest kind of certificate of any sample.
    pub kind: Kind,
    /// Assumptions of any certificate.
    pub assumes: Assumptions,
    /// Share of the query heads' trials whose last check required a larger sample.
    pub not_held: f64,
    /// Trials of all heads (layers), and violations among them: the error of the target exceeded
    /// epsilon, or exceeded the error bar if the sample size is fixed or a limit on the size was
    /// too small.
    pub violations: ViolationCount,
    /// Error bars of the query heads' trials. The evidence is the worst of any head, at [`LEVEL`]
    /// over the number of heads.
    pub bars: BarsSummary,
    /// Largest 95 % Clopper–Pearson upper bound on the failure rate of any head (layer).
    pub upper: f64,
    /// Head (layer) with the smallest p-value.
    pub worst: TrialCount,
    /// Test of the heads (layers).
    pub test: CountTest,
    /// Row with the smallest p-value: a head (layer) at one query.
    pub worst_row: TrialCount,
    /// Test of the rows; its number of trials is the smallest of any row.
    pub row_test: CountTest,
    /// Numbers of rows with enough samples, and with too few, to be tested individually.
    pub row_coverage: JudgedRows,
    /// Test of all rows together.
    pub rows_together: RowsTogether,
    /// Evidence on delta from the violations of the heads (layers).
    pub evidence: EvidenceCounts,
    /// Verdict.
    pub verdict: PromiseVerdict,
    /// True if the verdict is [`PromiseVerdict::Held`].
    pub held: bool,
    /// Tests that contradict the promise.
    pub contradicted_by: Vec<PromiseTest>,
    /// Tests that do not contradict the promise, but would at the level [`SUSPICION`].
    pub suspected_by: Vec<PromiseTest>,
    /// Place and cause of most failures, if the promise is contradicted.
    pub fault: Option<HeadFault>,
    /// Count of each query head.
    pub heads: Vec<HeadCount>,
    /// Count of each layer, under scope `step`.
    pub steps: Vec<StepCount>,
    /// Count of each row: a head (layer) at one query.
    pub rows: Vec<TrialCount>,
}

/// Result of the tests of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PromiseVerdict {
    /// No p-value is below the levels of contradiction and suspicion, and every row has enough
    /// samples to contradict delta.
    Held,
    /// A test contradicts delta.
    Contradicted,
    /// No test contradicts delta, but a p-value is below the level of suspicion, or some rows have
    /// too few samples to be judged.
    Undecided,
}

/// Test of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PromiseTest {
    /// Each head (layer) over all queries: p-values below [`LEVEL`] over their number.
    Pooled,
    /// Each row: p-values below [`LEVEL`] over their number.
    Row,
    /// All rows together: [`RowsTogether`].
    RowsTogether,
}

/// Numbers of heads (layers), by the evidence from their violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EvidenceCounts {
    /// [`Evidence::WithinDelta`].
    pub within_delta: usize,
    /// [`Evidence::AboveDelta`].
    pub above_delta: usize,
    /// [`Evidence::Contradicted`].
    pub contradicted: usize,
}

/// Query head with most failures, and their cause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct HeadFault {
    /// Layer.
    pub layer: usize,
    /// Query head.
    pub query_head: usize,
    /// Most frequent cause among the head's samples that violated the promise.
    pub cause: FailureCause,
    /// Share of these samples with that cause.
    pub share: f64,
}

/// Draws `trials` samples for every KV head of every layer, spread over its queries, and counts the
/// errors of each query head that exceed epsilon, or the error bar. Each trial has its own sequence
/// number, so that samples are independent. Selectors choose once for each query (for each trial if
/// a selector draws), because a promise is conditional on the selection, and get no feedback. A KV
/// head is a unit of `results`. `progress` is called with the number of finished trials and the
/// number of all trials, from any thread.
///
/// Cost: the pipeline, and f64 sums over the tokens that it reads, `trials` times per KV head; in
/// parallel.
///
/// # Errors
/// If the pipeline has no estimator or cannot run on the trace, or the trace is damaged, and as
/// [`Results::run`].
pub fn verify(
    pipeline: &Arc<PipelineConfig>,
    trace: &Trace,
    trials: u32,
    results: &Results,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Verification> {
    let pipelines = std::slice::from_ref(pipeline);
    let mut verdicts = verify_all(pipelines, trace, trials, results, progress)?;
    Ok(verdicts.pop().expect("there is a verdict on each pipeline"))
}

/// Verifies several pipelines, as [`verify`] does one.
///
/// # Errors
/// Same as [`verify`].
pub fn verify_all(
    pipelines: &[Arc<PipelineConfig>],
    trace: &Trace,
    trials: u32,
    results: &Results,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Verification>> {
    let goals = pipelines.iter().map(|pipeline| goal(pipeline)).collect::<Result<Vec<_>>>()?;
    let layers: Vec<(usize, Layout)> = trace.layers().collect();
    for goal in &goals {
        expect_enough(trials, &layers, goal)?;
    }
    for (number, layout) in &layers {
        trace.expect_queries(*number, layout)?;
    }
    let found = run_all_trials(pipelines, trace, &layers, trials as usize, results, progress)?;
    let verdict = |((pipeline, goal), found): ((&Arc<PipelineConfig>, Goal), _)| {
        Verification::new(pipeline.name.clone(), goal, found)
    };
    Ok(pipelines.iter().zip(goals).zip(found).map(verdict).collect())
}

/// Draws `trials` samples for each KV head; returns the counts, pipeline by pipeline and layer by
/// layer.
pub(crate) fn run_all_trials(
    pipelines: &[Arc<PipelineConfig>],
    trace: &Trace,
    layers: &[(usize, Layout)],
    trials: usize,
    results: &Results,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Vec<LayerTrials>>> {
    pipelines.iter().try_for_each(|pipeline| expect_classes(pipeline, trace, layers))?;
    let goals = pipelines.iter().map(|pipeline| goal(pipeline)).collect::<Result<Vec<_>>>()?;
    // A unit is (index of the pipeline, index of the layer, KV head).
    let heads = |layer: usize| (0..layers[layer].1.shape.kv_heads).map(move |head| (layer, head));
    let layers_and_heads = || (0..layers.len()).flat_map(heads);
    let units: Vec<(usize, usize, usize)> = (0..pipelines.len())
        .flat_map(|pipeline| layers_and_heads().map(move |(layer, head)| (pipeline, layer, head)))
        .collect();
    let key = |&(pipeline, layer, head): &(usize, usize, usize)| {
        let (name, layer) = (&pipelines[pipeline].name, layers[layer].0);
        format!("pipeline {} ({name}), layer {layer}, KV head {head}", pipeline + 1)
    };
    let keys: Vec<String> = units.iter().map(key).collect();
    let trials_of_heads: Vec<KvHeadTrials> = results.run_together(&keys, |numbers, sink| {
        let (done, total) = (AtomicUsize::new(0), numbers.len() * trials);
        let tick = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        let place = |number: &usize| (units[*number].0, units[*number].1);
        numbers.chunk_by(|a, b| place(a) == place(b)).try_for_each(|of_layer| {
            let (pipeline, layer) = place(&of_layer[0]);
            let (number, scale) = (layers[layer].0, trace.info().scale);
            let layer = trace.layer(number).expect("the layer was listed")?;
            let stored = trace.stored_layer(&layer)?;
            let layers = BenchLayer { given: &layer, stored: stored.as_ref().unwrap_or(&layer) };
            let heads = of_layer.iter().map(|&unit| units[unit].2);
            let (pipeline, goal) = (&pipelines[pipeline], &goals[pipeline]);
            let bench = TrialBench::new(pipeline, goal, number, layers, scale, heads)?;
            of_layer
                .par_iter()
                .try_for_each(|&unit| sink.put(unit, bench.run(units[unit].2, trials, &tick)))
        })
    })?;
    let mut trials_of_heads = trials_of_heads.into_iter();
    let of_pipeline = |(pipeline, goal): (&Arc<PipelineConfig>, &Goal)| {
        let of_layer = |&(number, layout): &(usize, Layout)| {
            let heads: Vec<KvHeadTrials> =
                trials_of_heads.by_ref().take(layout.shape.kv_heads).collect();
            let (query_heads, queries) = (layout.shape.query_heads, layout.queries);
            let heads_per_list = pipeline.share.heads_per_list(layout.shape.group());
            LayerCounts { goal, number, query_heads, queries, heads_per_list }.count(&heads)
        };
        layers.iter().map(of_layer).collect()
    };
    Ok(pipelines.iter().zip(&goals).map(of_pipeline).collect())
}

impl Verification {
    fn new(pipeline: String, goal: Goal, layers: Vec<LayerTrials>) -> Self {
        let (mut heads, mut rows, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        let (mut units, mut queries) = (Vec::new(), 0);
        for layer in layers {
            queries = queries.max(layer.queries());
            heads.extend(layer.heads);
            rows.extend(layer.rows);
            units.extend(layer.units);
            steps.extend(layer.step);
        }
        let counts: Vec<TrialCount> = match goal.scope {
            Scope::Row => heads.iter().map(TrialCount::from).collect(),
            Scope::Step => steps.iter().map(TrialCount::from).collect(),
        };
        let delta = goal.delta.get();
        let (worst, test) = worst_count(&counts, delta);
        let (worst_row, row_test) = worst_count(&rows, delta);
        let row_coverage = JudgedRows::new(&rows, queries, delta);
        let rows_together = RowsTogether::new(&units, delta);
        let tests = [
            (PromiseTest::Pooled, worst.p_value, test.limit),
            (PromiseTest::Row, worst_row.p_value, row_test.limit),
            (PromiseTest::RowsTogether, rows_together.p_value(), rows_together.limit),
        ];
        let (mut contradicted_by, mut suspected_by) = (Vec::new(), Vec::new());
        for (test, p_value, limit) in tests {
            if p_value < limit {
                contradicted_by.push(test);
            } else if p_value < limit / LEVEL * SUSPICION {
                suspected_by.push(test);
            }
        }
        let fault = contradicted_by.first().and_then(|test| match test {
            PromiseTest::Pooled => HeadFault::find(&heads, Some(&worst)),
            PromiseTest::Row => HeadFault::find(&heads, Some(&worst_row)),
            PromiseTest::RowsTogether => HeadFault::find(&heads, None),
        });
        let verdict = if !contradicted_by.is_empty() {
            PromiseVerdict::Contradicted
        } else if suspected_by.is_empty() && row_coverage.unjudged == 0 {
            PromiseVerdict::Held
        } else {
            PromiseVerdict::Undecided
        };
        let sum = |count: fn(&HeadCount) -> usize| heads.iter().map(count).sum::<usize>() as f64;
        Self {
            pipeline,
            goal,
            kind: heads.iter().map(|head| head.kind).min().unwrap_or(Kind::None),
            assumes: heads.iter().fold(Assumptions::NONE, |all, head| all | head.assumes),
            not_held: 1.0 - sum(|head| head.held) / sum(|head| head.trials),
            violations: ViolationCount {
                unit: goal.scope,
                violated: counts.iter().map(|count| count.violations).sum(),
                checked: counts.iter().map(|count| count.trials).sum(),
            },
            bars: judge_bars(&heads, &goal),
            upper: counts.iter().map(TrialCount::upper).fold(0.0, f64::max),
            worst,
            test,
            worst_row,
            row_test,
            row_coverage,
            rows_together,
            evidence: counts.iter().map(|count| count.evidence(delta, test.limit)).collect(),
            verdict,
            held: verdict == PromiseVerdict::Held,
            contradicted_by,
            suspected_by,
            fault,
            heads,
            steps,
            rows,
        }
    }

    /// Evidence on delta from the violations of a row.
    pub fn evidence_of_row(&self, row: &TrialCount) -> Evidence {
        row.evidence(self.goal.delta.get(), self.row_test.limit)
    }

    /// Evidence on delta from the violations of a head (layer).
    pub fn evidence_of(&self, count: impl Into<TrialCount>) -> Evidence {
        count.into().evidence(self.goal.delta.get(), self.test.limit)
    }
}

/// Summarizes the error bars of heads; the evidence is the worst of any head.
fn judge_bars(heads: &[HeadCount], goal: &Goal) -> BarsSummary {
    let level = LEVEL / heads.len() as f64;
    let query_heads = heads.iter().map(|head| head.query_head + 1).max().unwrap_or(1);
    let delta = goal.scope.row_delta(goal.delta.get(), query_heads);
    let judge = |head: &HeadCount| Evidence::new(head.bars.outside, head.trials, delta, level);
    let bars: Bars = heads.iter().map(|head| head.bars).sum();
    bars.summary(heads.iter().map(judge).max())
}

/// Returns the count with the smallest p-value, and the test of the counts.
fn worst_count(counts: &[TrialCount], delta: f64) -> (TrialCount, CountTest) {
    let order = |a: &TrialCount, b: &TrialCount| {
        a.p_value.total_cmp(&b.p_value).then(b.violations.cmp(&a.violations))
    };
    let worst = counts.iter().copied().min_by(order).unwrap_or_default();
    let trials = counts.iter().map(|count| count.trials).min().unwrap_or(0);
    (worst, CountTest::new(trials, delta, LEVEL / counts.len() as f64))
}

impl fmt::Display for PromiseVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held => "held",
            Self::Contradicted => "contradicted",
            Self::Undecided => "undecided",
        })
    }
}

impl fmt::Display for PromiseTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pooled => "heads",
            Self::Row => "a row",
            Self::RowsTogether => "rows together",
        })
    }
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

impl HeadFault {
    /// Returns the fault of the head with most violations, among the heads that `worst` counts, or
    /// among all.
    fn find(heads: &[HeadCount], worst: Option<&TrialCount>) -> Option<Self> {
        let is_counted = |head: &&HeadCount| {
            worst.is_none_or(|worst| {
                head.layer == worst.layer
                    && worst.query_head.is_none_or(|query_head| query_head == head.query_head)
            })
        };
        let head = heads.iter().filter(is_counted).max_by_key(|head| head.violations)?;
        let cause = head.failures.most_frequent();
        let share = head.failures.count(cause) as f64 / head.violations as f64;
        Some(Self { layer: head.layer, query_head: head.query_head, cause, share })
    }
}

/// Refuses a number of trials that is too small for any head (layer) to contradict delta.
fn expect_enough(trials: u32, layers: &[(usize, Layout)], goal: &Goal) -> Result<()> {
    let counts: usize = match goal.scope {
        Scope::Row => layers.iter().map(|(_, layout)| layout.shape.query_heads).sum(),
        Scope::Step => layers.len(),
    };
    let delta = goal.delta.get();
    let least = binomial::least_trials(delta, LEVEL / counts as f64);
    if trials as usize >= least {
        return Ok(());
    }
    let reason = format!("{trials} cannot contradict delta = {delta}; expected at least {least}");
    Err(Error::Setting { field: "trials", reason })
}

/// Returns the goal of a pipeline's estimator.
fn goal(pipeline: &PipelineConfig) -> Result<Goal> {
    pipeline.parts().find_map(PipelineConfig::goal).ok_or_else(|| {
        let reason = format!("{} promises nothing: it has no [estimator]", pipeline.name);
        Error::Setting { field: "config", reason }
    })
}

/// Draws `trials` samples for each KV head of a layer in memory, and counts violations of
/// `promise`, which need not be the pipeline's. `scale` multiplies the queries, as in a trace.
///
/// # Errors
/// If the pipeline cannot run on the layer.
pub fn try_layer(
    pipeline: &Arc<PipelineConfig>,
    promise: &Promise,
    layer: &TraceLayer,
    scale: Option<f32>,
    trials: usize,
) -> Result<LayerTrials> {
    let (goal, shape) = (Goal::from(*promise), layer.shape());
    let layers = BenchLayer { given: layer, stored: layer };
    let bench = TrialBench::new(pipeline, &goal, 0, layers, scale, 0..shape.kv_heads)?;
    let heads = (0..shape.kv_heads).into_par_iter();
    let heads: Vec<KvHeadTrials> = heads.map(|head| bench.run(head, trials, &|| {})).collect();
    let (query_heads, queries) = (shape.query_heads, layer.queries.dim().1);
    let heads_per_list = pipeline.share.heads_per_list(shape.group());
    let goal = &goal;
    let counts = LayerCounts { goal, number: 0, query_heads, queries, heads_per_list };
    Ok(counts.count(&heads))
}
