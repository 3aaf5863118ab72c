//! Counts of rows whose error is outside their error bar.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use vattention_core::{Certificate, Goal, Kind};

use super::{Evidence, ListCounts, RowError, exceeds};

/// Largest excess of an error over its bar that rounding in f32 may explain.
pub(crate) const ROUNDING: f64 = 1e-5;

/// Counts of error bars, and of bars that the error exceeds, over the rows that have an error bar
/// and did not read every token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bars {
    /// Number of rows.
    pub rows: usize,
    /// Number of rows whose error is larger than the radius.
    pub outside: usize,
    /// Number of rows whose radius is infinite.
    pub unbounded: usize,
    /// Sum of the finite radii.
    pub radii: f64,
    /// Largest finite radius.
    pub widest: f64,
}

impl Bars {
    /// Adds a row, whose error of the bar's target is `error`.
    pub fn add(&mut self, certificate: &Certificate, error: f64) {
        let Some(bar) = certificate.bar.filter(|_| certificate.kind != Kind::Exact) else { return };
        self.rows += 1;
        self.outside += usize::from(exceeds(error, bar.radius + ROUNDING));
        if bar.radius.is_finite() {
            self.radii += bar.radius;
            self.widest = self.widest.max(bar.radius);
        } else {
            self.unbounded += 1;
        }
    }

    /// Adds a row whose errors of all targets are known.
    pub fn add_row(&mut self, certificate: &Certificate, error: &RowError) {
        if let Some(bar) = &certificate.bar {
            self.add(certificate, error.relative(bar.target));
        }
    }

    /// Returns the sum of both counts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            outside: self.outside + other.outside,
            unbounded: self.unbounded + other.unbounded,
            radii: self.radii + other.radii,
            widest: self.widest.max(other.widest),
        }
    }

    /// Mean of the finite radii; `None` if no radius is finite.
    pub fn mean(&self) -> Option<f64> {
        let bounded = self.rows - self.unbounded;
        (bounded > 0).then(|| self.radii / bounded as f64)
    }

    /// Serializes the summary, without evidence, instead of the sums.
    pub(crate) fn serialize_summary<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.summary(None).serialize(to)
    }

    /// Returns the summary, with the evidence on the bars' delta.
    pub fn summary(&self, evidence: Option<Evidence>) -> BarsSummary {
        let &Self { rows, outside, unbounded, widest, .. } = self;
        let evidence = evidence.filter(|_| rows > 0);
        BarsSummary { rows, outside, unbounded, mean: self.mean(), widest, evidence }
    }

    /// Returns the summary, with the evidence on the delta of a pipeline's `goal`, over the token
    /// `lists` of all its rows.
    ///
    /// Delta bounds the failures of every row, so rows that read every token count as inside their
    /// bars. Under scope `step`, delta is divided among the `query_heads` of a layer.
    pub fn judge(
        &self,
        goal: Option<&Goal>,
        query_heads: usize,
        lists: ListCounts,
        all_rows: usize,
    ) -> BarsSummary {
        let evidence = goal.map(|goal| {
            let delta = goal.scope.row_delta(goal.delta.get(), query_heads);
            lists.evidence(self.outside, all_rows, delta)
        });
        self.summary(evidence)
    }
}

/// Summary of error bars in reports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct BarsSummary {
    /// Number of rows that have an error bar and did not read every token.
    pub rows: usize,
    /// Number of these rows whose error is larger than the bar.
    pub outside: usize,
    /// Number of these rows whose bar is infinite.
    pub unbounded: usize,
    /// Mean of the finite bars; `None` if no bar is finite.
    pub mean: Option<f64>,
    /// Largest finite bar; 0 if no bar is finite.
    pub widest: f64,
    /// Evidence on the bars' delta; `None` without a row.
    pub evidence: Option<Evidence>,
}

impl BarsSummary {
    /// Share of the rows that are outside; `None` without rows.
    pub fn share_outside(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.outside as f64 / self.rows as f64)
    }
}

impl std::iter::Sum for Bars {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::and)
    }
}

#[cfg(test)]
mod tests {
    use vattention_core::{Fraction, Goal, Promise, Target, promise::Assumptions};

    use super::*;

    fn certificate(kind: Kind, radius: f64) -> Certificate {
        let tenth = Fraction::try_from(0.1).expect("a fraction");
        let goal = Goal::from(Promise::new(Target::Sdpa, tenth, tenth));
        let bar = Some(goal.bar(radius));
        Certificate { promise: None, bar, kind, assumes: Assumptions::NONE, held: false }
    }

    #[test]
    fn rows_are_outside_if_their_errors_exceed_their_bars() {
        let mut bars = Bars::default();
        for (radius, error) in
            [(0.2, 0.1), (0.2, 0.3), (0.4, 0.400_001), (f64::INFINITY, 5.0), (0.1, f64::INFINITY)]
        {
            bars.add(&certificate(Kind::Asymptotic, radius), error);
        }
        bars.add(&certificate(Kind::Exact, 0.0), 1e-3);
        let mut nan_error = Bars::default();
        nan_error.add(&certificate(Kind::Asymptotic, 0.2), f64::NAN);
        assert_eq!(nan_error.outside, 1);
        let without = Certificate { bar: None, ..certificate(Kind::None, 0.0) };
        bars.add(&without, 9.0);
        assert_eq!((bars.rows, bars.outside, bars.unbounded), (5, 2, 1));
        assert!((bars.mean().expect("a mean") - 0.225).abs() < 1e-12);
        assert_eq!((bars.widest, bars.summary(None).share_outside()), (0.4, Some(0.4)));
        let twice: Bars = [bars; 2].into_iter().sum();
        assert_eq!((twice.rows, twice.outside, twice.mean()), (10, 4, bars.mean()));
        let none = Bars::default().summary(None);
        assert_eq!((none.mean, none.share_outside()), (None, None));
    }
}
