//! Results of a comparison: what is measured row by row, and its summary.

use ndarray::{ArrayView1, Axis, s};
use serde::{Deserialize, Serialize};
use vattention_core::{Kind, Output, PipelineConfig, Promise, RowReport, Target};
use vattention_trace::{Layout, TraceLayer};

use crate::metrics::{
    Bars, BarsSummary, ErrorSummary, Evidence, ExactWeights, MeanMax, RowError, TokenLists,
    ViolationCount, Violations,
};
use crate::{Entry, Exact};

/// The results of pipelines on a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The trace's file, as given.
    pub trace: String,
    /// The backend's name.
    pub backend: String,
    /// One entry per pipeline, in the order given.
    pub pipelines: Vec<Measured>,
}

impl Comparison {
    /// For each pipeline, whether it is on the Pareto front of density per KV head and mean error: no
    /// other is at most as large in both and smaller in one.
    pub fn front(&self) -> Vec<bool> {
        let place = |one: &Measured| (one.density, one.output_error.mean);
        front(&self.pipelines.iter().map(place).collect::<Vec<_>>())
    }
}

/// For each (density, error), whether no other is at most as large in both and smaller in one.
pub(crate) fn front(places: &[(f64, f64)]) -> Vec<bool> {
    let beats = |(d, e): (f64, f64), (density, error): (f64, f64)| {
        d <= density && e <= error && (d < density || e < error)
    };
    places.iter().map(|&one| !places.iter().any(|&other| beats(other, one))).collect()
}

/// The results of one pipeline, over all rows of all layers.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The pipeline's name.
    pub pipeline: String,
    /// Its file, as given.
    pub file: String,
    /// What was set so that it reads a share of the tokens, if that was asked for.
    pub set: Option<String>,
    /// Mean over rows of the share of the visible tokens that the query heads of a KV head read
    /// together, the base sample included. This share determines the memory traffic.
    pub density: f64,
    /// Largest density of a row.
    pub largest_density: f64,
    /// Mean over rows of the share of the visible tokens that one query head reads.
    pub density_per_query_head: f64,
    /// Attention that the tokens read for certain hold, relative to what as many tokens could hold;
    /// mean over rows.
    pub recall: f64,
    /// What selectors keep beside a KV head's keys and values, bytes per token.
    pub index_bytes_per_token: f64,
    /// `|out − exact| / |exact|`.
    pub output_error: ErrorSummary,
    /// `|D^ − D| / D`.
    pub denominator_error: ErrorSummary,
    /// `|N^ − N| / |N|`.
    pub numerator_error: ErrorSummary,
    /// Tokens drawn by chance per row; `None` if the pipeline draws none.
    pub budget: Option<MeanMax>,
    /// How often the promise was violated; `None` if there is none.
    pub guarantee: Option<Guarantee>,
    /// The error bars, the number of rows outside, and the evidence on their delta.
    pub bars: BarsSummary,
    /// How it fared with what it had not evicted; `None` if it evicts nothing.
    pub live: Option<Live>,
    /// Rows that read every token because a selector learns from a prompt's last queries and was
    /// shown none.
    pub unobserved: usize,
    /// Time spent answering queries.
    pub seconds: f64,
}

/// How a pipeline that evicts tokens fared with those that are left.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Live {
    /// Share of the visible tokens that are live: not evicted.
    pub tokens: MeanMax,
    /// `|out − live| / |live|`, where `live` is exact attention over the live tokens: what was lost by not reading all of them.
    /// The rest of [`output_error`](Measured::output_error) was lost by evicting the others.
    pub output_error: ErrorSummary,
}

/// How often a promise was violated.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Guarantee {
    /// What was promised.
    pub promise: Promise,
    /// What the promise rested on, at its weakest.
    pub kind: Kind,
    /// Number of violations, in the promise's unit.
    pub violations: ViolationCount,
    /// Token lists that the rows were read by.
    pub lists: TokenLists,
    /// What the violations say of delta, each list counted once.
    pub evidence: Evidence,
}

/// Measurements of one pipeline, row by row.
#[derive(Clone, Default, Serialize, Deserialize)]
#[allow(clippy::unsafe_derive_deserialize)] // What is unsafe is within `s!`.
pub(crate) struct RowTally {
    /// Errors of the output, the denominator and the numerator.
    errors: [Vec<f64>; 3],
    recalls: Vec<f64>,
    /// Shares that rows read together with those of their KV head, and by themselves.
    densities: [Vec<f64>; 2],
    sampled: Vec<usize>,
    /// The weakest of any row.
    kind: Option<Kind>,
    violations: Violations,
    lists: TokenLists,
    /// Number of query heads of a layer; the largest, if layers differ.
    query_heads: usize,
    bars: Bars,
    index_bytes: Vec<f64>,
    /// Of each row the share of live tokens, and the error relative to attention over them.
    live: [Vec<f64>; 2],
    /// Whether any row had evicted tokens.
    evicts: bool,
    unobserved: usize,
}

/// What [`RowTally`] has errors of.
const TARGETS: [Target; 3] = [Target::Sdpa, Target::Denominator, Target::Numerator];

/// What one row is measured against.
#[derive(Clone)]
pub(crate) struct ExactRow {
    exact: Exact,
    attention: ExactWeights,
}

impl ExactRow {
    pub(crate) fn new(exact: Exact, weights: ArrayView1<'_, f64>) -> Self {
        Self { exact, attention: ExactWeights::new(weights) }
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
            self.lists.and(TokenLists::new(exact.len(), pipeline.share.heads_per_list(group)));
        let mut errors = Vec::with_capacity(exact.len());
        for (head, row) in exact.iter().enumerate() {
            let log_denominator = f64::from(output.log_denominator[[head, 0]]);
            let out = output.out.slice(s![head, 0, ..]);
            let error = RowError::new(out, log_denominator, &row.exact);
            errors.push(error);
            if let Some(selection) = &output.selection {
                let (tokens, probabilities) = selection.row(head);
                let certain: Vec<usize> = tokens
                    .iter()
                    .zip(probabilities)
                    .filter_map(|(&token, &p)| (p == 1.0).then_some(token as usize))
                    .collect();
                self.recalls.push(row.attention.recall(certain.into_iter()));
                let (share, of_live) = match &selection.live[head] {
                    None => (1.0, error.of(Target::Sdpa)),
                    Some(live) => {
                        self.evicts = true;
                        let values = layer.values.index_axis(Axis(0), head / group);
                        let exact = row.attention.over(live, &values);
                        let error = RowError::new(out, log_denominator, &exact).of(Target::Sdpa);
                        (live.len() as f64 / output.rows[head].visible as f64, error)
                    }
                };
                self.live[0].push(share);
                self.live[1].push(of_live);
            }
        }
        self.add_step(&errors, &output.rows, pipeline.promise().as_ref());
    }

    /// Adds the rows of one step.
    fn add_step(&mut self, errors: &[RowError], reports: &[RowReport], promise: Option<&Promise>) {
        for (of_target, target) in self.errors.iter_mut().zip(TARGETS) {
            of_target.extend(errors.iter().map(|row| row.of(target)));
        }
        for (row, report) in errors.iter().zip(reports) {
            self.densities[0].push(report.density_of_group());
            self.densities[1].push(report.density());
            self.sampled.push(report.sampled);
            self.unobserved += usize::from(report.unobserved);
            let kind = report.certificate.kind;
            self.kind = Some(self.kind.map_or(kind, |weakest| weakest.min(kind)));
            self.bars.add_row(&report.certificate, row);
        }
        if let Some(promise) = promise {
            let violated = |(row, report): (&RowError, &RowReport)| {
                !report.certificate.is_bar_alone() && row.exceeds(promise)
            };
            self.violations.add_step(errors.iter().zip(reports).map(violated));
        }
    }

    /// Adds the size of a layer's index.
    pub(crate) fn add_index(&mut self, bytes: usize, layout: &Layout) {
        self.index_bytes.push(bytes as f64 / (layout.shape.kv_heads * layout.tokens) as f64);
    }

    /// Adds the rows of another layer after its own.
    pub(crate) fn append(&mut self, other: Self) {
        let longer = self.errors.iter_mut().chain(&mut self.densities).chain(&mut self.live);
        let longer = longer.chain([&mut self.recalls, &mut self.index_bytes]);
        let more = other.errors.into_iter().chain(other.densities).chain(other.live);
        let more = more.chain([other.recalls, other.index_bytes]);
        longer.zip(more).for_each(|(all, more)| all.extend(more));
        self.sampled.extend(other.sampled);
        self.kind = [self.kind, other.kind].into_iter().flatten().min();
        self.violations = [self.violations, other.violations].into_iter().sum();
        self.lists = self.lists.and(other.lists);
        self.query_heads = self.query_heads.max(other.query_heads);
        self.bars = self.bars.and(other.bars);
        self.evicts |= other.evicts;
        self.unobserved += other.unobserved;
    }

    pub(crate) fn measured(self, entry: &Entry, seconds: f64) -> Measured {
        let rows = self.sampled.len();
        let [output_error, denominator_error, numerator_error] =
            self.errors.map(|of_target| ErrorSummary::new(of_target.into_iter()));
        let [per_kv_head, per_query_head] =
            self.densities.map(|shares| MeanMax::new(shares.into_iter()));
        let [shares, of_live] = self.live;
        let live = Live {
            tokens: MeanMax::new(shares.into_iter()),
            output_error: ErrorSummary::new(of_live.into_iter()),
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
        let bars = self.bars.judge(goal.as_ref(), self.query_heads, self.lists, rows);
        Measured {
            pipeline: entry.pipeline.name.clone(),
            file: entry.file.clone(),
            set: entry.set.clone(),
            density: per_kv_head.mean,
            largest_density: per_kv_head.max,
            density_per_query_head: per_query_head.mean,
            recall: MeanMax::new(self.recalls.into_iter()).mean,
            index_bytes_per_token: MeanMax::new(self.index_bytes.into_iter()).mean,
            output_error,
            denominator_error,
            numerator_error,
            budget: draws.then(drawn),
            bars,
            guarantee: entry.pipeline.promise().map(guarantee),
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
    fn the_front_is_what_nothing_beats() {
        let places = [(0.1, 0.5), (0.2, 0.2), (0.2, 0.3), (0.3, 0.2), (0.1, 0.5), (0.05, 0.9)];
        assert_eq!(front(&places), [true, true, false, false, true, true]);
    }

    #[test]
    fn rows_are_counted_as_their_names_say() {
        let report = |certain, sampled, read_by_group, kind| RowReport {
            fell_back: false,
            unobserved: false,
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
            let layer = |rows: std::ops::Range<usize>, recall, index_bytes, (share, of_live)| {
                let (recalls, index_bytes) = (vec![recall], vec![index_bytes]);
                let (live, evicts) = ([vec![share], vec![of_live]], share < 1.0);
                let mut tally =
                    RowTally { recalls, index_bytes, live, evicts, ..RowTally::default() };
                tally.lists = TokenLists::new(rows.len(), rows.len());
                tally.add_step(&errors[rows.clone()], &reports[rows], promise.as_ref());
                tally
            };
            let mut all = layer(0..1, 0.5, 3.0, (0.5, 0.0));
            all.append(layer(1..3, 1.0, 5.0, (1.0, 0.25)));
            all
        };
        let got = tally(Scope::Row).measured(&entry(Scope::Row), 0.0);
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
        assert_eq!(guarantee.violations.to_string(), "2 of 3", "above epsilon, or no number");
        assert_eq!(guarantee.lists, TokenLists { count: 2, heads_per_list: 2 });
        assert_eq!(guarantee.kind, Kind::Asymptotic, "the weakest");
        let of_steps =
            tally(Scope::Step).measured(&entry(Scope::Step), 0.0).guarantee.expect("a promise");
        assert_eq!(of_steps.violations.to_string(), "1 of 2 steps", "two heads of one step");
        assert_eq!(of_steps.evidence, Evidence::AboveDelta);
    }
}
