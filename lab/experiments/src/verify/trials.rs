//! What the samples of one row came to.

use serde::{Deserialize, Serialize};
use vattention_core::{Certificate, Goal, Kind, Row, pipeline::Reading, promise::Assumptions};

use super::cause::Failures;
use super::checked_row::{CheckedRow, Truth};
use crate::Exact;
use crate::metrics::{Bars, ROUNDING, exceeds};

/// The samples of one row, a head at one query.
#[derive(Serialize, Deserialize)]
pub(super) struct RowTrials {
    /// Of the target, one of each sample.
    pub(super) errors: Vec<f64>,
    /// Whether each exceeded what its certificate says.
    pub(super) violated: Vec<bool>,
    pub(super) bars: Bars,
    /// Residual tokens drawn, over all samples.
    pub(super) sampled: usize,
    /// Shares of the visible tokens read, over all samples.
    pub(super) density: f64,
    /// Samples that the last check found large enough.
    pub(super) held: usize,
    /// What the promise rested on, at its weakest.
    pub(super) kind: Kind,
    /// What any certificate took for granted.
    pub(super) assumes: Assumptions,
    /// Why samples violated the promise.
    pub(super) failures: Failures,
    /// Of the whole residual, if an estimator sampled it.
    pub(super) spread: Option<ResidualSpread>,
}

/// How a residual is spread.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct ResidualSpread {
    /// The effective rank of the covariance of `w = e (v − o)`.
    pub(super) nu: f64,
    /// The kurtosis of `w`.
    pub(super) kurtosis: f64,
}

/// The samples of one row, while they are drawn.
pub(super) struct Trying<'a> {
    row: CheckedRow<'a>,
    goal: &'a Goal,
    truth: Option<Truth>,
    trials: RowTrials,
}

impl<'a> Trying<'a> {
    pub(super) fn new(row: &Row<'a>, exact: &'a Exact, goal: &'a Goal) -> Self {
        let trials = RowTrials {
            errors: Vec::new(),
            violated: Vec::new(),
            bars: Bars::default(),
            sampled: 0,
            density: 0.0,
            held: 0,
            kind: Kind::Exact,
            assumes: Assumptions::NONE,
            failures: Failures::default(),
            spread: None,
        };
        Self { row: CheckedRow::new(row, exact, goal), goal, truth: None, trials }
    }

    /// Adds what one sample came to.
    pub(super) fn add(&mut self, reading: &Reading, member: usize) {
        let (read, report) = (reading.read_by(member), reading.report(member));
        let Self { row, goal, truth, trials } = self;
        let uniform = read.budget.is_some() && read.probabilities().is_none();
        if let (None, Some(picks), true) = (&truth, read.picks(), uniform) {
            *truth = Some(row.truth(picks));
        }
        let error = row.error(&row.sums(&read.list()));
        let violated = exceeds(error, allowed(goal, &report.certificate));
        if violated {
            trials.failures.add(row.cause(read, error, truth.as_ref()));
        }
        trials.errors.push(error);
        trials.violated.push(violated);
        trials.bars.add(&report.certificate, error);
        trials.sampled += report.sampled;
        trials.density += report.density();
        trials.held += usize::from(report.certificate.held);
        trials.kind = trials.kind.min(report.certificate.kind);
        trials.assumes = trials.assumes | report.certificate.assumes;
    }

    pub(super) fn finish(self) -> RowTrials {
        let spread =
            |truth: Truth| ResidualSpread { nu: truth.nu, kurtosis: truth.stats.kurtosis_w };
        RowTrials { spread: self.truth.map(spread), ..self.trials }
    }
}

/// The error that a sample may exceed with probability delta only: epsilon where it is promised, else
/// its error bar.
fn allowed(goal: &Goal, certificate: &Certificate) -> f64 {
    match (goal.epsilon(), certificate.bar) {
        (Some(epsilon), _) if !certificate.is_bar_alone() => epsilon.get(),
        (_, Some(bar)) => bar.radius + ROUNDING,
        (_, None) => f64::INFINITY,
    }
}
