//! Results of the samples of one row.

use serde::{Deserialize, Serialize};
use vattention_core::{
    Certificate, Goal, Kind, Pipeline, Row, pipeline::Reading, promise::Assumptions,
};

use super::cause::FailureCounts;
use super::checked_row::{CheckedRow, ResidualTruth};
use crate::Exact;
use crate::metrics::{Bars, ROUNDING, exceeds};

/// Samples of one row: a query head at one query.
#[derive(Serialize, Deserialize)]
pub(super) struct RowTrials {
    /// Error of the target in each sample.
    pub(super) errors: Vec<f64>,
    /// True for each sample whose error exceeded the bound of its certificate.
    pub(super) violated: Vec<bool>,
    pub(super) bars: Bars,
    /// Number of drawn residual tokens, summed over samples.
    pub(super) sampled: usize,
    /// Density, summed over samples.
    pub(super) density: f64,
    /// Bound on the effect of rounding, summed over samples; 0 unless the promise counts it.
    pub(super) rounding: f64,
    /// Number of samples that were large enough by their last check.
    pub(super) held: usize,
    /// Weakest kind of certificate of any sample.
    pub(super) kind: Kind,
    /// Assumptions of any certificate.
    pub(super) assumes: Assumptions,
    /// Causes of the violations.
    pub(super) failures: FailureCounts,
    /// Spread of the whole residual, if an estimator sampled it uniformly.
    pub(super) spread: Option<ResidualSpread>,
}

/// Spread of a residual.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct ResidualSpread {
    /// Effective rank of the covariance of `w = e (v − o)`.
    pub(super) nu: f64,
    /// Kurtosis of `w`.
    pub(super) kurtosis: f64,
}

/// Recorder of the samples of one row.
pub(super) struct TrialRecorder<'a> {
    row: CheckedRow<'a>,
    goal: &'a Goal,
    truth: Option<ResidualTruth>,
    trials: RowTrials,
}

impl<'a> TrialRecorder<'a> {
    pub(super) fn new(row: &Row<'a>, exact: &'a Exact, goal: &'a Goal) -> Self {
        let trials = RowTrials {
            errors: Vec::new(),
            violated: Vec::new(),
            bars: Bars::default(),
            sampled: 0,
            density: 0.0,
            rounding: 0.0,
            held: 0,
            kind: Kind::Exact,
            assumes: Assumptions::NONE,
            failures: FailureCounts::default(),
            spread: None,
        };
        Self { row: CheckedRow::new(row, exact, goal), goal, truth: None, trials }
    }

    /// Adds one sample.
    pub(super) fn add(&mut self, pipeline: &Pipeline, reading: &Reading, member: usize) {
        let read = reading.read_by(member);
        let Self { row, goal, truth, trials } = self;
        let uniform = read.budget.is_some() && read.probabilities().is_none();
        if let (None, Some(picks), true) = (&truth, read.picks(), uniform) {
            *truth = Some(row.truth(picks));
        }
        let sums = row.sums(&read.list());
        let report = row.count_rounding(pipeline, &sums, reading.report(member));
        let error = row.error(&sums);
        let violated = exceeds(error, largest_allowed_error(goal, &report.certificate));
        if violated {
            trials.failures.add(row.cause(read, error, truth.as_ref()));
        }
        trials.errors.push(error);
        trials.violated.push(violated);
        trials.bars.add(&report.certificate, error);
        trials.sampled += report.sampled;
        trials.density += report.density();
        trials.rounding += report.rounding.unwrap_or(0.0);
        trials.held += usize::from(report.certificate.held);
        trials.kind = trials.kind.min(report.certificate.kind);
        trials.assumes = trials.assumes | report.certificate.assumes;
    }

    pub(super) fn finish(self) -> RowTrials {
        let spread = |truth: ResidualTruth| ResidualSpread {
            nu: truth.nu,
            kurtosis: truth.stats.kurtosis_w,
        };
        RowTrials { spread: self.truth.map(spread), ..self.trials }
    }
}

/// Returns the error that a sample may exceed with a probability of at most delta: epsilon if it is
/// promised, else the sample's error bar.
fn largest_allowed_error(goal: &Goal, certificate: &Certificate) -> f64 {
    match (goal.epsilon(), certificate.bar) {
        (Some(epsilon), _) if !certificate.has_only_bar() => epsilon.get(),
        (_, Some(bar)) => bar.radius + ROUNDING,
        (_, None) => f64::INFINITY,
    }
}
