//! Counts of samples that violated a promise, and what else is told of them.

use serde::Serialize;
use vattention_core::{Goal, Kind, promise::Assumptions};

use super::cause::Failures;
use super::trials::{ResidualSpread, RowTrials};
use crate::metrics::{Bars, ErrorSummary, Evidence, binomial, quantile, sorted};

/// One query head's samples. Heads that share a sample are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeadCount {
    /// The layer.
    pub layer: usize,
    /// The query head.
    pub query_head: usize,
    /// Trials in which its error exceeded epsilon; or, where a size was asked for or a limit did not
    /// suffice, its error bar.
    #[serde(rename = "violated")]
    pub violations: usize,
    /// Trials.
    #[serde(rename = "checked")]
    pub trials: usize,
    /// How probable that many violations are, if the failure probability is delta.
    pub p_value: f64,
    /// Its error bars.
    #[serde(serialize_with = "Bars::serialize_summary")]
    pub bars: Bars,
    /// Trials in which the last check found the sample large enough.
    pub held: usize,
    /// What the promise rested on, at its weakest.
    pub kind: Kind,
    /// What any of its certificates took for granted.
    pub assumes: Assumptions,
    /// Tokens drawn at random, on average.
    pub sampled: f64,
    /// Share of the visible tokens read, on average.
    pub density: f64,
    /// Errors of the promised target.
    pub error: ErrorSummary,
    /// The smallest error that at least a share of 1 − delta of the trials do not exceed.
    pub error_at_delta: f64,
    /// Effective rank of the covariance of `w = e (v − o)` over the whole residual, mean over
    /// queries; `None` if no estimator sampled it.
    pub nu: Option<f64>,
    /// Kurtosis of `w` over the whole residual, likewise.
    pub kurtosis: Option<f64>,
    /// Which assumptions failed where its error exceeded epsilon.
    pub failures: Failures,
}

/// The samples of all query heads of a layer together: the largest error of any, by trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepCount {
    /// The layer.
    pub layer: usize,
    /// Trials in which any head's error exceeded epsilon.
    #[serde(rename = "violated")]
    pub violations: usize,
    /// Trials.
    #[serde(rename = "checked")]
    pub trials: usize,
    /// How probable that many violations are, if the failure probability is delta.
    pub p_value: f64,
    /// Largest errors of the promised target.
    pub error: ErrorSummary,
    /// The smallest of them that at least a share of 1 − delta of the trials do not exceed.
    pub error_at_delta: f64,
}

/// The failures of a query head, or of all of a layer together, over all queries or at one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Count {
    /// The layer.
    pub layer: usize,
    /// The query head; `None`: all together.
    pub query_head: Option<usize>,
    /// The query; `None`: all.
    pub query: Option<usize>,
    /// Trials in which the error exceeded epsilon.
    #[serde(rename = "violated")]
    pub violations: usize,
    /// Trials.
    #[serde(rename = "checked")]
    pub trials: usize,
    /// How probable that many violations are, if the failure probability is delta.
    pub p_value: f64,
    /// Smallest error that at least a share of 1 − delta of the trials do not exceed; 0 without a
    /// trial.
    pub error_at_delta: f64,
}

impl HeadCount {
    /// Of the rows of one head.
    pub(super) fn new(layer: usize, query_head: usize, rows: &[&RowTrials], goal: &Goal) -> Self {
        let errors = sorted(rows.iter().flat_map(|row| row.errors.iter().copied()));
        let violated = rows.iter().flat_map(|row| row.violated.iter().copied());
        let Tested { violations, trials, p_value } = Tested::new(violated, goal);
        let per_trial = |sum: f64| sum / trials as f64;
        let residuals: Vec<_> = rows.iter().filter_map(|row| row.spread).collect();
        let mean = |of: fn(&ResidualSpread) -> f64| {
            let sum: f64 = residuals.iter().map(of).sum();
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
            error: ErrorSummary::of_sorted(&errors),
            error_at_delta: quantile(&errors, 1.0 - goal.delta.get()),
            nu: mean(|spread| spread.nu),
            kurtosis: mean(|spread| spread.kurtosis),
            failures: rows.iter().fold(Failures::default(), |sum, row| sum.and(row.failures)),
        }
    }
}

impl StepCount {
    /// Of a layer's steps, given the largest error of any head in each, and whether any head's exceeded
    /// what it may.
    pub(super) fn new(layer: usize, errors: Vec<f64>, violated: Vec<bool>, goal: &Goal) -> Self {
        let errors = sorted(errors.into_iter());
        let Tested { violations, trials, p_value } = Tested::new(violated, goal);
        let error_at_delta = quantile(&errors, 1.0 - goal.delta.get());
        let error = ErrorSummary::of_sorted(&errors);
        Self { layer, violations, trials, p_value, error, error_at_delta }
    }
}

impl Count {
    /// Count of the samples at one query, given the error of each and whether it violated the
    /// promise.
    pub(super) fn at_query(
        layer: usize,
        query_head: Option<usize>,
        query: usize,
        errors: &[f64],
        violated: &[bool],
        goal: &Goal,
    ) -> Self {
        let Tested { violations, trials, p_value } = Tested::new(violated.iter().copied(), goal);
        let errors = sorted(errors.iter().copied());
        // A row has no trial where there are more queries than trials.
        let error_at_delta =
            if errors.is_empty() { 0.0 } else { quantile(&errors, 1.0 - goal.delta.get()) };
        Self { layer, query_head, query: Some(query), violations, trials, p_value, error_at_delta }
    }

    /// What it says of delta, where p-values below `limit` contradict it.
    pub(super) fn evidence(&self, delta: f64, limit: f64) -> Evidence {
        Evidence::new(self.violations, self.trials, delta, limit)
    }

    pub(super) fn upper(&self) -> f64 {
        binomial::upper_bound(self.violations, self.trials, 0.05)
    }
}

impl From<&HeadCount> for Count {
    fn from(head: &HeadCount) -> Self {
        let &HeadCount { layer, query_head, violations, trials, p_value, error_at_delta, .. } =
            head;
        let (query_head, query) = (Some(query_head), None);
        Self { layer, query_head, query, violations, trials, p_value, error_at_delta }
    }
}

impl From<&StepCount> for Count {
    fn from(step: &StepCount) -> Self {
        let &StepCount { layer, violations, trials, p_value, error_at_delta, .. } = step;
        let (query_head, query) = (None, None);
        Self { layer, query_head, query, violations, trials, p_value, error_at_delta }
    }
}

/// A count against delta.
struct Tested {
    violations: usize,
    trials: usize,
    p_value: f64,
}

impl Tested {
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
