//! Counts of samples that violated a promise, and summaries of these samples.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{Goal, Kind, promise::Assumptions};

use super::cause::FailureCounts;
use super::trials::{ResidualSpread, RowTrials};
use crate::metrics::{Bars, ErrorSummary, Evidence, binomial, quantile, sorted};

/// Summary of one query head's samples. Heads that share a sample are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct HeadCount {
    /// Layer.
    pub layer: usize,
    /// Query head.
    pub query_head: usize,
    /// Number of trials whose error exceeded epsilon, or exceeded the error bar if the sample size
    /// is fixed or a limit on the size was too small.
    #[serde(rename = "violated")]
    pub violations: usize,
    /// Number of trials.
    #[serde(rename = "checked")]
    pub trials: usize,
    /// Probability of at least that number of violations, if the failure probability is delta.
    pub p_value: f64,
    /// Error bars.
    #[serde(serialize_with = "Bars::serialize_summary")]
    #[schemars(with = "crate::metrics::BarsSummary")]
    pub bars: Bars,
    /// Number of trials whose sample was large enough by the last check.
    pub held: usize,
    /// Weakest kind of certificate of any trial.
    pub kind: Kind,
    /// Assumptions of any certificate.
    pub assumes: Assumptions,
    /// Number of sampled tokens, on average.
    pub sampled: f64,
    /// Share of the visible tokens read, on average.
    pub density: f64,
    /// Bound on the change of the target by the rounding of keys and values, on average; `None`
    /// unless the promise counts rounding.
    pub rounding: Option<f64>,
    /// Errors of the promised target.
    pub error: ErrorSummary,
    /// Smallest error that at least a share of 1 − delta of the trials do not exceed.
    pub error_at_delta: f64,
    /// Effective rank of the covariance of `w = e (v − o)` over the whole residual, mean over
    /// queries; `None` if no estimator sampled the residual uniformly.
    pub nu: Option<f64>,
    /// Kurtosis of `w` over the whole residual, mean over queries; `None` as for `nu`.
    pub kurtosis: Option<f64>,
    /// Causes of the violations.
    pub failures: FailureCounts,
}

/// Summary of the samples of all query heads of a layer together: the largest error of any head, by
/// trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct StepCount {
    /// Layer.
    pub layer: usize,
    /// Number of trials in which the error of any head exceeded epsilon.
    #[serde(rename = "violated")]
    pub violations: usize,
    /// Number of trials.
    #[serde(rename = "checked")]
    pub trials: usize,
    /// Probability of at least that number of violations, if the failure probability is delta.
    pub p_value: f64,
    /// Largest errors of the promised target.
    pub error: ErrorSummary,
    /// Smallest of these errors that at least a share of 1 − delta of the trials do not exceed.
    pub error_at_delta: f64,
}

/// Count of violations of a query head, or of all heads of a layer together, at one query or over
/// all queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct TrialCount {
    /// Layer.
    pub layer: usize,
    /// Query head; `None` for all heads together.
    pub query_head: Option<usize>,
    /// Query; `None` for all queries.
    pub query: Option<usize>,
    /// Number of trials whose error exceeded epsilon.
    #[serde(rename = "violated")]
    pub violations: usize,
    /// Number of trials.
    #[serde(rename = "checked")]
    pub trials: usize,
    /// Probability of at least that number of violations, if the failure probability is delta.
    pub p_value: f64,
    /// Smallest error that at least a share of 1 − delta of the trials do not exceed; 0 without a
    /// trial.
    pub error_at_delta: f64,
}

impl HeadCount {
    /// Summarizes the rows of one head.
    pub(super) fn new(layer: usize, query_head: usize, rows: &[&RowTrials], goal: &Goal) -> Self {
        let errors = sorted(rows.iter().flat_map(|row| row.errors.iter().copied()));
        let violated = rows.iter().flat_map(|row| row.violated.iter().copied());
        let BinomialTest { violations, trials, p_value } = BinomialTest::new(violated, goal);
        let per_trial = |sum: f64| sum / trials as f64;
        let residuals: Vec<_> = rows.iter().filter_map(|row| row.spread).collect();
        let mean = |statistic: fn(&ResidualSpread) -> f64| {
            let sum: f64 = residuals.iter().map(statistic).sum();
            (!residuals.is_empty()).then(|| sum / residuals.len() as f64)
        };
        Self {
            layer,
            query_head,
            violations,
            trials,
            p_value,
            bars: rows.iter().map(|row| row.bars).sum(),
            held: rows.iter().map(|row| row.held).sum(),
            kind: rows.iter().map(|row| row.kind).min().unwrap_or(Kind::None),
            assumes: rows.iter().fold(Assumptions::NONE, |all, row| all | row.assumes),
            sampled: per_trial(rows.iter().map(|row| row.sampled as f64).sum()),
            density: per_trial(rows.iter().map(|row| row.density).sum()),
            rounding: (!goal.reference.is_stored())
                .then(|| per_trial(rows.iter().map(|row| row.rounding).sum())),
            error: ErrorSummary::from_sorted(&errors),
            error_at_delta: quantile(&errors, 1.0 - goal.delta.get()),
            nu: mean(|spread| spread.nu),
            kurtosis: mean(|spread| spread.kurtosis),
            failures: rows.iter().fold(FailureCounts::default(), |sum, row| sum.and(row.failures)),
        }
    }
}

impl StepCount {
    /// Summarizes a layer's steps: `errors` has the largest error of any head in each trial,
    /// `violated` has whether any head violated the promise in the trial.
    pub(super) fn new(layer: usize, errors: Vec<f64>, violated: Vec<bool>, goal: &Goal) -> Self {
        let errors = sorted(errors.into_iter());
        let BinomialTest { violations, trials, p_value } = BinomialTest::new(violated, goal);
        let error_at_delta = quantile(&errors, 1.0 - goal.delta.get());
        let error = ErrorSummary::from_sorted(&errors);
        Self { layer, violations, trials, p_value, error, error_at_delta }
    }
}

impl TrialCount {
    /// Counts the samples at one query, given the error of each sample and whether it violated the
    /// promise.
    pub(super) fn at_query(
        layer: usize,
        query_head: Option<usize>,
        query: usize,
        errors: &[f64],
        violated: &[bool],
        goal: &Goal,
    ) -> Self {
        let BinomialTest { violations, trials, p_value } =
            BinomialTest::new(violated.iter().copied(), goal);
        let errors = sorted(errors.iter().copied());
        // A row has no trial if there are more queries than trials.
        let error_at_delta =
            if errors.is_empty() { 0.0 } else { quantile(&errors, 1.0 - goal.delta.get()) };
        Self { layer, query_head, query: Some(query), violations, trials, p_value, error_at_delta }
    }

    /// Evidence on delta, where p-values below `limit` contradict delta.
    pub(super) fn evidence(&self, delta: f64, limit: f64) -> Evidence {
        Evidence::new(self.violations, self.trials, delta, limit)
    }

    pub(super) fn upper(&self) -> f64 {
        binomial::upper_bound(self.violations, self.trials, 0.05)
    }
}

impl From<&HeadCount> for TrialCount {
    fn from(head: &HeadCount) -> Self {
        let &HeadCount { layer, query_head, violations, trials, p_value, error_at_delta, .. } =
            head;
        let (query_head, query) = (Some(query_head), None);
        Self { layer, query_head, query, violations, trials, p_value, error_at_delta }
    }
}

impl From<&StepCount> for TrialCount {
    fn from(step: &StepCount) -> Self {
        let &StepCount { layer, violations, trials, p_value, error_at_delta, .. } = step;
        let (query_head, query) = (None, None);
        Self { layer, query_head, query, violations, trials, p_value, error_at_delta }
    }
}

/// Test of a count of violations against delta.
struct BinomialTest {
    violations: usize,
    trials: usize,
    p_value: f64,
}

impl BinomialTest {
    fn new(violated: impl IntoIterator<Item = bool>, goal: &Goal) -> Self {
        let (mut violations, mut trials) = (0, 0);
        for violated in violated {
            trials += 1;
            violations += usize::from(violated);
        }
        let p_value = binomial::p_value(violations, trials, goal.delta.get());
        Self { violations, trials, p_value }
    }
}
