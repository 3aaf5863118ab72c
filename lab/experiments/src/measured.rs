//! Results of a comparison: measurements of rows, and their summary.

use ndarray::{ArrayView1, Axis, s};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vattention_core::{
    Kind, Output, PipelineConfig, Promise, RowReport, Target, promise::ReferenceRows,
};
use vattention_trace::{Layout, TraceLayer};

use crate::metrics::{
    Bars, BarsSummary, ErrorSummary, Evidence, ExactWeights, ListCounts, MeanMax, RowError,
    ViolationCount, Violations,
};
use crate::{Entry, Exact};

/// Results of pipelines on a trace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Comparison {
    /// File of the trace, as given.
    pub trace: String,
    /// Name of the backend.
    pub backend: String,
    /// Result of each pipeline, in the order given.
    pub pipelines: Vec<PipelineResult>,
}

impl Comparison {
    /// Returns, for each pipeline, whether it is on the Pareto front of density per KV head and
    /// mean error: no other pipeline is at most as large in both and smaller in one.
    pub fn front(&self) -> Vec<bool> {
        let point = |measured: &PipelineResult| (measured.density, measured.output_error.mean);
        front(&self.pipelines.iter().map(point).collect::<Vec<_>>())
    }
}

/// Returns, for each point (density, error), whether no other point is at most as large in both
/// coordinates and smaller in one.
pub(crate) fn front(points: &[(f64, f64)]) -> Vec<bool> {
    let beats = |(d, e): (f64, f64), (density, error): (f64, f64)| {
        d <= density && e <= error && (d < density || e < error)
    };
    points.iter().map(|&point| !points.iter().any(|&other| beats(other, point))).collect()
}

/// Result of one pipeline, over all rows of all layers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PipelineResult {
    /// Name of the pipeline.
    pub pipeline: String,
    /// File of the pipeline, as given.
    pub file: String,
    /// Settings that tune the pipeline to a density; `None` if it has its own settings.
    pub set: Option<String>,
    /// Mean over rows of the share of the visible tokens that the query heads of a KV head read
    /// together, the base sample included. This share determines the memory traffic.
    pub density: f64,
    /// Largest density of a row.
    pub largest_density: f64,
    /// Mean over rows of the share of the visible tokens that one query head reads.
    pub density_per_query_head: f64,
    /// Attention weight of the tokens that were read deterministically, relative to that of the
    /// same number of heaviest tokens; mean over rows.
    pub recall: f64,
    /// Size of the selectors' indexes of a KV head, in bytes per token.
    pub index_bytes_per_token: f64,
    /// Rows of the exact attention that errors are relative to.
    pub reference: ReferenceRows,
    /// `|out − exact| / |exact|`.
    pub output_error: ErrorSummary,
    /// `|D^ − D| / D`.
    pub denominator_error: ErrorSummary,
    /// `|N^ − N| / |N|`.
    pub numerator_error: ErrorSummary,
    /// Number of sampled tokens per row; `None` if the pipeline does not sample.
    pub budget: Option<MeanMax>,
    /// Bound on the change of the promise's target by the rounding of keys and values, over all
    /// rows; `None` unless the promise counts rounding.
    pub rounding: Option<MeanMax>,
    /// Violations of the promise; `None` without a promise, and if errors are relative to other
    /// rows than those of the promise.
    pub guarantee: Option<Guarantee>,
    /// Error bars, the number of rows outside their bars, and the evidence on the bars' delta.
    pub bars: BarsSummary,
    /// Errors against attention over the tokens that were not evicted; `None` if the pipeline
    /// evicts no tokens.
    pub live: Option<LiveTokens>,
    /// Number of rows that read every token because a selector learns from the last queries of a
    /// prompt, and the trace contains no such queries.
    pub unobserved: usize,
    /// Time spent computing attention, in seconds.
    pub seconds: f64,
}

/// Errors of a pipeline that evicts tokens, against attention over the live tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct LiveTokens {
    /// Share of the visible tokens that are live: not evicted.
    pub tokens: MeanMax,
    /// `|out − live| / |live|`, where `live` is exact attention over the live tokens: the error of
    /// reading a part of the live tokens. The rest of
    /// [`output_error`](PipelineResult::output_error) is due to eviction.
    pub output_error: ErrorSummary,
}

/// Violations of a promise.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Guarantee {
    /// The promise.
    pub promise: Promise,
    /// Weakest kind of certificate of any row.
    pub kind: Kind,
    /// Number of violations, in the promise's unit.
    pub violations: ViolationCount,
    /// Token lists of the rows.
    pub lists: ListCounts,
    /// Evidence on delta from the violations, where each token list counts once.
    pub evidence: Evidence,
}

/// Measurements of one pipeline, row by row.
#[derive(Clone, Default, Serialize, Deserialize)]
#[allow(clippy::unsafe_derive_deserialize)] // The unsafe code is inside `s!`.
pub(crate) struct RowTally {
    /// Errors of the output, the denominator and the numerator.
    errors: [Vec<f64>; 3],
    recalls: Vec<f64>,
    /// Densities of the rows' KV heads, and of the rows themselves.
    densities: [Vec<f64>; 2],
    sampled: Vec<usize>,
    /// Bounds on the effect of rounding, of the rows whose promise counts it.
    rounding: Vec<f64>,
    /// Weakest kind of certificate of any row.
    kind: Option<Kind>,
    violations: Violations,
    lists: ListCounts,
    /// Number of query heads of a layer; the largest, if layers differ.
    query_heads: usize,
    bars: Bars,
    index_bytes: Vec<f64>,
    /// Share of live tokens of each row, and the error against attention over these tokens.
    live: [Vec<f64>; 2],
    /// True if any row had evicted tokens.
    evicts: bool,
    unobserved: usize,
}

/// Targets of [`RowTally`]'s errors.
const TARGETS: [Target; 3] = [Target::Sdpa, Target::Denominator, Target::Numerator];

/// Exact attention of one row: the reference for its errors.
#[derive(Clone)]
pub(crate) struct ExactRow {
    exact: Exact,
    attention: ExactWeights,
}

impl ExactRow {
    pub(crate) fn new(exact: Exact, weights: ArrayView1<'_, f64>, sink: f64) -> Self {
        Self { exact, attention: ExactWeights::new(weights, sink) }
    }
}

impl RowTally {
    /// Adds the output of a pipeline for one query of a layer, with its selection.
    pub(crate) fn add(
        &mut self,
        output: &Output,
        exact: &[ExactRow],
        layer: &TraceLayer,
        pipeline: &PipelineConfig,
    ) {
        let group = exact.len() / layer.values.dim().0;
        self.query_heads = self.query_heads.max(exact.len());
        self.lists =
            self.lists.and(ListCounts::new(exact.len(), pipeline.share.heads_per_list(group)));
        let mut errors = Vec::with_capacity(exact.len());
        for (head, row) in exact.iter().enumerate() {
            let log_denominator = f64::from(output.log_denominator[[head, 0]]);
            let out = output.out.slice(s![head, 0, ..]);
            let error = RowError::new(out, log_denominator, &row.exact);
            errors.push(error);
            if let Some(selection) = &output.selection {
                let (tokens, probabilities) = selection.row(head);
                let always_read: Vec<usize> = tokens
                    .iter()
                    .zip(probabilities)
                    .filter_map(|(&token, &p)| (p == 1.0).then_some(token as usize))
                    .collect();
                self.recalls.push(row.attention.recall(always_read.into_iter()));
                let (share, live_error) = match &selection.live[head] {
                    None => (1.0, error.relative(Target::Sdpa)),
                    Some(live) => {
                        self.evicts = true;
                        let values = layer.values.index_axis(Axis(0), head / group);
                        let exact = row.attention.over(live, &values);
                        let error =
                            RowError::new(out, log_denominator, &exact).relative(Target::Sdpa);
                        (live.len() as f64 / output.rows[head].visible as f64, error)
                    }
                };
                self.live[0].push(share);
                self.live[1].push(live_error);
            }
        }
        self.add_step(&errors, &output.rows, pipeline.promise().as_ref());
    }

    /// Adds the rows of one step.
    fn add_step(&mut self, errors: &[RowError], reports: &[RowReport], promise: Option<&Promise>) {
        for (target_errors, target) in self.errors.iter_mut().zip(TARGETS) {
            target_errors.extend(errors.iter().map(|row| row.relative(target)));
        }
        for (row, report) in errors.iter().zip(reports) {
            self.densities[0].push(report.density_of_group());
            self.densities[1].push(report.density());
            self.sampled.push(report.sampled);
            self.rounding.extend(report.rounding);
            self.unobserved += usize::from(report.unobserved);
            let kind = report.certificate.kind;
            self.kind = Some(self.kind.map_or(kind, |weakest| weakest.min(kind)));
            self.bars.add_row(&report.certificate, row);
        }
        if let Some(promise) = promise {
            let violated =
                |(row, report): (&RowError, &RowReport)| row.violates(promise, &report.certificate);
            self.violations.add_step(errors.iter().zip(reports).map(violated));
        }
    }

    /// Adds the size of a layer's index.
    pub(crate) fn add_index(&mut self, bytes: usize, layout: &Layout) {
        self.index_bytes.push(bytes as f64 / (layout.shape.kv_heads * layout.tokens) as f64);
    }

    /// Appends the rows of another layer.
    pub(crate) fn append(&mut self, other: Self) {
        let columns = self.errors.iter_mut().chain(&mut self.densities).chain(&mut self.live);
        let columns = columns.chain([&mut self.recalls, &mut self.index_bytes]);
        let additions = other.errors.into_iter().chain(other.densities).chain(other.live);
        let additions = additions.chain([other.recalls, other.index_bytes]);
        columns.zip(additions).for_each(|(column, addition)| column.extend(addition));
        self.sampled.extend(other.sampled);
        self.rounding.extend(other.rounding);
        self.kind = [self.kind, other.kind].into_iter().flatten().min();
        self.violations = [self.violations, other.violations].into_iter().sum();
        self.lists = self.lists.and(other.lists);
        self.query_heads = self.query_heads.max(other.query_heads);
        self.bars = self.bars.and(other.bars);
        self.evicts |= other.evicts;
        self.unobserved += other.unobserved;
    }

    /// Summarizes all rows, whose errors are relative to attention over the `reference` rows.
    pub(crate) fn summarize(
        self,
        entry: &Entry,
        seconds: f64,
        reference: ReferenceRows,
    ) -> PipelineResult {
        let rows = self.sampled.len();
        let [output_error, denominator_error, numerator_error] =
            self.errors.map(|target_errors| ErrorSummary::new(target_errors.into_iter()));
        let [per_kv_head, per_query_head] =
            self.densities.map(|shares| MeanMax::new(shares.into_iter()));
        let [shares, live_error] = self.live;
        let live = LiveTokens {
            tokens: MeanMax::new(shares.into_iter()),
            output_error: ErrorSummary::new(live_error.into_iter()),
        };
        let draws = entry.pipeline.parts().any(PipelineConfig::draws);
        let drawn = || MeanMax::new(self.sampled.iter().map(|&sampled| sampled as f64));
        let guarantee = |promise: Promise| Guarantee {
            promise,
            kind: self.kind.unwrap_or(Kind::None),
            violations: self.violations.count(promise.scope),
            lists: self.lists,
            evidence: self.violations.evidence(&promise, self.lists),
        };
        let goal = entry.pipeline.parts().find_map(PipelineConfig::goal);
        let goal = goal.filter(|goal| goal.reference == reference);
        let bars = self.bars.judge(goal.as_ref(), self.query_heads, self.lists, rows);
        PipelineResult {
            pipeline: entry.pipeline.name.clone(),
            file: entry.file.clone(),
            set: entry.set.clone(),
            density: per_kv_head.mean,
            largest_density: per_kv_head.max,
            density_per_query_head: per_query_head.mean,
            recall: MeanMax::new(self.recalls.into_iter()).mean,
            index_bytes_per_token: MeanMax::new(self.index_bytes.into_iter()).mean,
            reference,
            output_error,
            denominator_error,
            numerator_error,
            budget: draws.then(drawn),
            bars,
            rounding: (!self.rounding.is_empty()).then(|| MeanMax::new(self.rounding.into_iter())),
            guarantee: goal.and_then(|goal| goal.promise()).map(guarantee),
            live: self.evicts.then_some(live),
            unobserved: self.unobserved,
            seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde::Deserialize;
    use vattention_core::{
        Certificate, Estimator, Goal, PipelineConfig, SampleStats,
        plugin::Radius,
        promise::{Assumptions, Scope},
        typetag,
    };

    use super::*;

    #[derive(Clone, Debug, Serialize, Deserialize)]
    struct Promising {
        scope: Scope,
    }

    #[typetag::serde(name = "promising")]
    impl Estimator for Promising {
        fn radius(&self, _: &SampleStats) -> Radius {
            unreachable!("nothing is drawn")
        }
        fn goal(&self) -> Result<Goal, &'static str> {
            let [epsilon, delta] = [0.25, 0.125].map(|x| x.try_into().expect("a fraction"));
            let promise = Promise::new(Target::Denominator, epsilon, delta);
            Ok(Goal::from(Promise { scope: self.scope, ..promise }))
        }
    }

    fn error(denominator: f64) -> RowError {
        RowError { output: 0.5, numerator: 0.75, denominator, norm: 1.0 }
    }

    fn entry(scope: Scope) -> Entry {
        let estimator: Box<dyn Estimator> = Box::new(Promising { scope });
        let pipeline = PipelineConfig { estimator: Some(estimator), ..Default::default() };
        Entry { pipeline: Arc::new(pipeline), file: "f".into(), set: None }
    }

    #[test]
    fn no_point_beats_the_points_of_the_front() {
        let points = [(0.1, 0.5), (0.2, 0.2), (0.2, 0.3), (0.3, 0.2), (0.1, 0.5), (0.05, 0.9)];
        assert_eq!(front(&points), [true, true, false, false, true, true]);
    }

    #[test]
    fn summaries_follow_their_definitions() {
        let report = |certain, sampled, read_by_group, kind| RowReport {
            fell_back: false,
            unobserved: false,
            rounding: None,
            visible: 100,
            certain,
            sampled,
            read_by_group,
            budget: Some(77),
            certificate: Certificate {
                promise: None,
                bar: None,
                kind,
                assumes: Assumptions::NONE,
                held: true,
            },
        };
        let reports = [
            report(10, 20, 40, Kind::Exact),
            report(0, 10, 60, Kind::Asymptotic),
            report(0, 30, 80, Kind::Exact),
        ];
        let errors = [error(0.25), error(f64::NAN), error(0.26)];
        let tally = |scope| {
            let promise = entry(scope).pipeline.promise();
            let layer = |rows: std::ops::Range<usize>, recall, index_bytes, (share, live_error)| {
                let (recalls, index_bytes) = (vec![recall], vec![index_bytes]);
                let (live, evicts) = ([vec![share], vec![live_error]], share < 1.0);
                let mut tally =
                    RowTally { recalls, index_bytes, live, evicts, ..RowTally::default() };
                tally.lists = ListCounts::new(rows.len(), rows.len());
                tally.add_step(&errors[rows.clone()], &reports[rows], promise.as_ref());
                tally
            };
            let mut all = layer(0..1, 0.5, 3.0, (0.5, 0.0));
            all.append(layer(1..3, 1.0, 5.0, (1.0, 0.25)));
            all
        };
        let got = tally(Scope::Row).summarize(&entry(Scope::Row), 0.0, ReferenceRows::Stored);
        let close = |got: MeanMax, mean: f64, max: f64| {
            assert!((got.mean - mean).abs() < 1e-12 && (got.max - max).abs() < 1e-12, "{got:?}");
        };
        close(MeanMax { mean: got.density, max: got.largest_density }, 0.6, 0.8);
        assert!((got.density_per_query_head - 0.7 / 3.0).abs() < 1e-12);
        close(got.budget.expect("an estimator"), 20.0, 30.0);
        assert_eq!((got.recall, got.index_bytes_per_token), (0.75, 4.0));
        assert_eq!((got.output_error.max, got.numerator_error.max), (0.5, 0.75));
        let live = got.live.expect("it evicts");
        assert_eq!((live.tokens.mean, live.output_error.max), (0.75, 0.25));
        assert!((got.denominator_error.p50 - 0.26).abs() < 1e-12);
        assert_eq!(got.denominator_error.max, f64::INFINITY);
        let guarantee = got.guarantee.expect("a promise");
        assert_eq!((guarantee.promise.epsilon.get(), guarantee.promise.delta.get()), (0.25, 0.125));
        assert_eq!(guarantee.violations.to_string(), "2 of 3", "above epsilon, or NaN");
        assert_eq!(guarantee.lists, ListCounts { count: 2, heads_per_list: 2 });
        assert_eq!(guarantee.kind, Kind::Asymptotic, "the weakest");
        let per_step = tally(Scope::Step)
            .summarize(&entry(Scope::Step), 0.0, ReferenceRows::Stored)
            .guarantee
            .expect("a promise");
        assert_eq!(per_step.violations.to_string(), "1 of 2 steps", "two heads of one step");
        assert_eq!(per_step.evidence, Evidence::AboveDelta);
    }
}
