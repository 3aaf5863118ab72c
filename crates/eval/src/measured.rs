//! How pipelines fared: what is gathered row by row, and what is told of it.

use std::time::Duration;

use ndarray::{ArrayView1, s};
use serde::Serialize;
use vattention_core::{Kind, Output, Promise, RowReport, Target};

use crate::errors::{ErrorSummary, MeanMax, RowError};
use crate::recall::Attention;
use crate::{Entry, Exact, Layout};

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

/// How one pipeline fared, over all rows of all layers.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The pipeline's name.
    pub name: String,
    /// Its file, as given.
    pub file: String,
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
    /// Residual tokens drawn per row; `None` without an estimator.
    pub budget: Option<MeanMax>,
    /// How the promise fared; `None` if there is none.
    pub guarantee: Option<Guarantee>,
    /// Time spent answering queries.
    pub seconds: f64,
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
    /// What was promised to be within epsilon.
    pub target: Target,
    /// The relative error promised.
    pub epsilon: f64,
    /// The share of rows that may exceed it.
    pub delta: f64,
    /// What the promise rested on, at its weakest.
    pub kind: Kind,
    /// Rows measured.
    pub rows: usize,
    /// Rows whose error of the target exceeds epsilon.
    pub violations: usize,
}

/// What is gathered of one pipeline, row by row.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    errors: Vec<RowError>,
    recalls: Vec<f64>,
    reports: Vec<RowReport>,
    index_bytes: Vec<f64>,
    time: Duration,
}

/// What one row is measured against.
#[derive(Clone)]
pub(crate) struct Judge {
    exact: Exact,
    attention: Attention,
}

impl Judge {
    pub(crate) fn new(exact: Exact, weights: ArrayView1<'_, f64>) -> Self {
        Self { exact, attention: Attention::new(weights) }
    }
}

impl Tally {
    /// Adds the answer to one query, with its selection.
    pub(crate) fn add(&mut self, output: &Output, judges: &[Judge], time: Duration) {
        for (head, judge) in judges.iter().enumerate() {
            let log_denominator = f64::from(output.log_denominator[[head, 0]]);
            let out = output.out.slice(s![head, 0, ..]);
            self.errors.push(RowError::new(out, log_denominator, &judge.exact));
            if let Some(selection) = &output.selection {
                let (tokens, probabilities) = selection.row(head);
                let certain: Vec<usize> = tokens
                    .iter()
                    .zip(probabilities)
                    .filter_map(|(&token, &p)| (p == 1.0).then_some(token as usize))
                    .collect();
                self.recalls.push(judge.attention.recall(certain.into_iter()));
            }
        }
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
            |error: fn(&RowError) -> f64| ErrorSummary::new(self.errors.iter().map(error));
        let estimator = entry.pipeline.estimator.as_ref();
        Measured {
            name: entry.pipeline.name.clone(),
            file: entry.file.clone(),
            density: Density {
                per_kv_head: MeanMax::new(reports.iter().map(RowReport::density_of_group)),
                per_query_head: MeanMax::new(reports.iter().map(RowReport::density)),
            },
            recall: MeanMax::new(self.recalls.iter().copied()).mean,
            index_bytes_per_token: MeanMax::new(self.index_bytes.iter().copied()).mean,
            output_error: summary(|row| row.output),
            denominator_error: summary(|row| row.denominator),
            numerator_error: summary(|row| row.numerator),
            budget: estimator.map(|_| MeanMax::new(reports.iter().map(|r| r.sampled as f64))),
            guarantee: entry.pipeline.promise().map(|promise| self.guarantee(&promise)),
            seconds: self.time.as_secs_f64(),
        }
    }

    fn guarantee(&self, promise: &Promise) -> Guarantee {
        let kinds = self.reports.iter().map(|report| report.certificate.kind);
        Guarantee {
            target: promise.target,
            epsilon: promise.epsilon.get(),
            delta: promise.delta.get(),
            kind: kinds.min().unwrap_or(Kind::None),
            rows: self.errors.len(),
            violations: self.errors.iter().filter(|row| row.exceeds(promise)).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde::Deserialize;
    use vattention_core::{
        Budget, BudgetEstimator, Certificate, PipelineConfig, SampleStats, typetag,
    };

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Promising {}

    #[typetag::serde(name = "promising")]
    impl BudgetEstimator for Promising {
        fn budget(&self, _: &SampleStats) -> Budget {
            Budget { tokens: 1, kind: Kind::Asymptotic }
        }
        fn promise(&self) -> Option<Promise> {
            let [epsilon, delta] = [0.25, 0.125].map(|x| x.try_into().expect("a fraction"));
            Some(Promise { target: Target::Denominator, epsilon, delta })
        }
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
            certificate: Certificate { promise: None, kind, held: true },
        };
        let error = |denominator| RowError { output: 0.5, denominator, numerator: 0.75 };
        let tally = Tally {
            errors: [0.25, f64::NAN, 0.26].map(error).into(),
            reports: vec![
                report(10, 20, 40, Kind::Exact),
                report(0, 10, 60, Kind::Asymptotic),
                report(0, 30, 80, Kind::Exact),
            ],
            recalls: vec![0.5, 1.0],
            index_bytes: vec![3.0, 5.0],
            time: Duration::ZERO,
        };
        let estimator: Box<dyn BudgetEstimator> = Box::new(Promising {});
        let pipeline = PipelineConfig { estimator: Some(estimator), ..Default::default() };
        let entry = Entry { pipeline: Arc::new(pipeline), file: "f".into() };
        let got = tally.measured(&entry);
        let close = |got: MeanMax, mean: f64, max: f64| {
            assert!((got.mean - mean).abs() < 1e-12 && (got.max - max).abs() < 1e-12, "{got:?}");
        };
        close(got.density.per_kv_head, 0.6, 0.8);
        close(got.density.per_query_head, 0.7 / 3.0, 0.3);
        close(got.budget.expect("an estimator"), 20.0, 30.0);
        assert_eq!((got.recall, got.index_bytes_per_token), (0.75, 4.0));
        assert_eq!((got.output_error.max, got.numerator_error.max), (0.5, 0.75));
        assert!((got.denominator_error.p50 - 0.26).abs() < 1e-12);
        let guarantee = got.guarantee.expect("a promise");
        assert_eq!((guarantee.epsilon, guarantee.delta), (0.25, 0.125));
        assert_eq!((guarantee.rows, guarantee.violations), (3, 2), "above epsilon, or no number");
        assert_eq!(guarantee.kind, Kind::Asymptotic, "the weakest");
    }
}
