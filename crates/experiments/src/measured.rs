//! How pipelines fared: what is gathered row by row, and what is told of it.

use std::time::Duration;

use ndarray::{ArrayView1, Axis, s};
use serde::Serialize;
use vattention_core::{Kind, Output, PipelineConfig, Promise, RowReport, Target};
use vattention_trace::{Layout, TraceLayer};

use crate::metrics::{Attention, Bars, ErrorSummary, Evidence, MeanMax, RowError, Violations};
use crate::{Entry, Exact};

/// How pipelines fared on a trace.
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
    /// Of each pipeline, whether it is on the front: no other reads as little and errs as little on
    /// average, and less in one of them.
    pub fn front(&self) -> Vec<bool> {
        let place = |one: &Measured| (one.density.per_kv_head.mean, one.output_error.mean);
        front(&self.pipelines.iter().map(place).collect::<Vec<_>>())
    }
}

/// Of each place (density, error), whether no other is as small in both, and smaller in one.
fn front(places: &[(f64, f64)]) -> Vec<bool> {
    let beats = |(d, e): (f64, f64), (density, error): (f64, f64)| {
        d <= density && e <= error && (d < density || e < error)
    };
    places.iter().map(|&one| !places.iter().any(|&other| beats(other, one))).collect()
}

/// How one pipeline fared, over all rows of all layers.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The pipeline's name.
    pub name: String,
    /// Its file, as given.
    pub file: String,
    /// What was set so that it reads a share of the tokens, if that was asked for.
    pub set: Option<String>,
    /// Share of visible tokens read.
    pub density: Density,
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
    /// How the promise fared; `None` if there is none.
    pub guarantee: Option<Guarantee>,
    /// The error bars, and how often the truth was outside.
    pub bars: Bars,
    /// How it fared with what it had not evicted; `None` if it evicts nothing.
    pub live: Option<Live>,
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

/// Share of visible tokens read, the base sample included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Density {
    /// By the query heads of a KV head together: what moves through memory.
    pub per_kv_head: MeanMax,
    /// By each query head.
    pub per_query_head: MeanMax,
}

/// How a promise fared.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Guarantee {
    /// What was promised.
    pub promise: Promise,
    /// What the promise rested on, at its weakest.
    pub kind: Kind,
    /// How often it was violated.
    pub violations: Violations,
    /// What that says of delta.
    pub evidence: Evidence,
}

/// What is gathered of one pipeline, row by row.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    /// Of the query heads at each step.
    errors: Vec<Vec<RowError>>,
    recalls: Vec<f64>,
    reports: Vec<RowReport>,
    index_bytes: Vec<f64>,
    /// Of each row the share of live tokens, and the error relative to attention over them.
    live: Vec<(f64, f64)>,
    /// Whether any row had evicted tokens.
    evicts: bool,
    time: Duration,
}

/// What one row is measured against.
#[derive(Clone)]
pub(crate) struct ExactRow {
    exact: Exact,
    attention: Attention,
}

impl ExactRow {
    pub(crate) fn new(exact: Exact, weights: ArrayView1<'_, f64>) -> Self {
        Self { exact, attention: Attention::new(weights) }
    }
}

impl Tally {
    /// Adds the answer to one query of a layer, with its selection.
    pub(crate) fn add(
        &mut self,
        output: &Output,
        exact_rows: &[ExactRow],
        layer: &TraceLayer,
        time: Duration,
    ) {
        let group = exact_rows.len() / layer.values.dim().0;
        let mut errors = Vec::with_capacity(exact_rows.len());
        for (head, row) in exact_rows.iter().enumerate() {
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
                self.live.push(match &selection.live[head] {
                    None => (1.0, error.of(Target::Sdpa)),
                    Some(live) => {
                        self.evicts = true;
                        let values = layer.values.index_axis(Axis(0), head / group);
                        let exact = row.attention.over(live, &values);
                        let error = RowError::new(out, log_denominator, &exact).of(Target::Sdpa);
                        (live.len() as f64 / output.rows[head].visible as f64, error)
                    }
                });
            }
        }
        self.errors.push(errors);
        self.reports.extend(&output.rows);
        self.time += time;
    }

    /// Adds the size of a layer's index.
    pub(crate) fn add_index(&mut self, bytes: usize, layout: &Layout) {
        self.index_bytes.push(bytes as f64 / (layout.shape.kv_heads * layout.tokens) as f64);
    }

    pub(crate) fn measured(self, entry: &Entry) -> Measured {
        let reports = &self.reports;
        let summary =
            |target| ErrorSummary::new(self.errors.iter().flatten().map(|row| row.of(target)));
        let draws = entry.pipeline.parts().any(PipelineConfig::draws);
        let drawn = || MeanMax::new(reports.iter().map(|report| report.sampled as f64));
        Measured {
            name: entry.pipeline.name.clone(),
            file: entry.file.clone(),
            set: entry.set.clone(),
            density: Density {
                per_kv_head: MeanMax::new(reports.iter().map(RowReport::density_of_group)),
                per_query_head: MeanMax::new(reports.iter().map(RowReport::density)),
            },
            recall: MeanMax::new(self.recalls.iter().copied()).mean,
            index_bytes_per_token: MeanMax::new(self.index_bytes.iter().copied()).mean,
            output_error: summary(Target::Sdpa),
            denominator_error: summary(Target::Denominator),
            numerator_error: summary(Target::Numerator),
            budget: draws.then(drawn),
            bars: self.bars(),
            guarantee: entry.pipeline.promise().map(|promise| self.guarantee(promise)),
            live: self.evicts.then(|| Live {
                tokens: MeanMax::new(self.live.iter().map(|&(share, _)| share)),
                output_error: ErrorSummary::new(self.live.iter().map(|&(_, error)| error)),
            }),
            seconds: self.time.as_secs_f64(),
        }
    }

    fn bars(&self) -> Bars {
        let mut bars = Bars::default();
        for (error, report) in self.errors.iter().flatten().zip(&self.reports) {
            if let Some(bar) = &report.certificate.bar {
                bars.add(&report.certificate, error.barred(bar));
            }
        }
        bars
    }

    fn guarantee(&self, promise: Promise) -> Guarantee {
        let kinds = self.reports.iter().map(|report| report.certificate.kind);
        let mut violations = Violations::default();
        let mut reports = self.reports.iter();
        for step in &self.errors {
            let violated = |(row, report): (&RowError, &RowReport)| {
                !report.certificate.is_bar_alone() && row.exceeds(&promise)
            };
            violations.add_step(step.iter().zip(reports.by_ref()).map(violated));
        }
        Guarantee {
            promise,
            kind: kinds.min().unwrap_or(Kind::None),
            violations,
            evidence: violations.evidence(&promise),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde::Deserialize;
    use vattention_core::{
        Assumptions, BudgetEstimator, Certificate, Demand, PipelineConfig, Radius, SampleStats,
        Scope, typetag,
    };

    use super::*;

    #[derive(Clone, Debug, Serialize, Deserialize)]
    struct Promising {
        scope: Scope,
    }

    #[typetag::serde(name = "promising")]
    impl BudgetEstimator for Promising {
        fn radius(&self, _: &SampleStats) -> Radius {
            unreachable!("nothing is drawn")
        }
        fn demand(&self) -> Demand {
            let [epsilon, delta] = [0.25, 0.125].map(|x| x.try_into().expect("a fraction"));
            let promise = Promise::new(Target::Denominator, epsilon, delta);
            Demand::of(Promise { scope: self.scope, ..promise })
        }
    }

    fn error(denominator: f64) -> RowError {
        RowError { output: 0.5, numerator: 0.75, denominator, norm: 1.0, mean_norm_v: 1.0 }
    }

    fn entry(scope: Scope) -> Entry {
        let estimator: Box<dyn BudgetEstimator> = Box::new(Promising { scope });
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
        let tally = Tally {
            errors: vec![vec![error(0.25)], vec![error(f64::NAN), error(0.26)]],
            reports: vec![
                report(10, 20, 40, Kind::Exact),
                report(0, 10, 60, Kind::Asymptotic),
                report(0, 30, 80, Kind::Exact),
            ],
            recalls: vec![0.5, 1.0],
            index_bytes: vec![3.0, 5.0],
            live: vec![(0.5, 0.0), (1.0, 0.25)],
            evicts: true,
            time: Duration::ZERO,
        };
        let got = tally.clone().measured(&entry(Scope::Row));
        let close = |got: MeanMax, mean: f64, max: f64| {
            assert!((got.mean - mean).abs() < 1e-12 && (got.max - max).abs() < 1e-12, "{got:?}");
        };
        close(got.density.per_kv_head, 0.6, 0.8);
        close(got.density.per_query_head, 0.7 / 3.0, 0.3);
        close(got.budget.expect("an estimator"), 20.0, 30.0);
        assert_eq!((got.recall, got.index_bytes_per_token), (0.75, 4.0));
        assert_eq!((got.output_error.max, got.numerator_error.max), (0.5, 0.75));
        let live = got.live.expect("it evicts");
        assert_eq!((live.tokens.mean, live.output_error.max), (0.75, 0.25));
        assert!((got.denominator_error.p50 - 0.26).abs() < 1e-12);
        assert_eq!(got.denominator_error.max, f64::INFINITY);
        let guarantee = got.guarantee.expect("a promise");
        assert_eq!((guarantee.promise.epsilon.get(), guarantee.promise.delta.get()), (0.25, 0.125));
        assert_eq!(guarantee.violations.of(Scope::Row), (2, 3), "above epsilon, or no number");
        assert_eq!(guarantee.kind, Kind::Asymptotic, "the weakest");
        let of_steps = tally.measured(&entry(Scope::Step)).guarantee.expect("a promise");
        assert_eq!(
            of_steps.violations.of(Scope::Step),
            (1, 2),
            "two heads of one step violated it"
        );
        assert_eq!(of_steps.evidence, Evidence::AboveDelta);
    }
}
