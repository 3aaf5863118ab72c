//! Relative errors, and their summaries over rows.

use ndarray::{Array1, ArrayView1};
use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::promise::Certificate;
use vattention_core::{Promise, Target, sample::max_or_nan};

use crate::Exact;

/// Error of one row against exact attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowError {
    /// `|o^ − o|`.
    pub(crate) output: f64,
    /// `|N^ − N| / D`.
    pub(crate) numerator: f64,
    /// `|D^ − D| / D`.
    pub(crate) denominator: f64,
    /// `|o|`, which is `|N| / D`.
    pub(crate) norm: f64,
}

impl RowError {
    /// Computes the errors of the estimates `N^/D^` `[value_dim]` and `ln D^`.
    pub fn new(output: ArrayView1<'_, f32>, log_denominator: f64, exact: &Exact) -> Self {
        let output = output.mapv(f64::from);
        let ratio = (log_denominator - exact.log_denominator).exp();
        Self {
            output: norm(&(&output - &exact.output)),
            numerator: norm(&(output * ratio - &exact.output)),
            denominator: (ratio - 1.0).abs(),
            norm: norm(&exact.output),
        }
    }

    /// Returns the relative error of a target; infinite where the estimate is not a number.
    pub fn relative(&self, target: Target) -> f64 {
        match target {
            Target::Sdpa => relative(self.output, self.norm),
            Target::Numerator => relative(self.numerator, self.norm),
            Target::Denominator => relative(self.denominator, 1.0),
        }
    }

    /// Returns true if the error of the promised target exceeds epsilon, although the row's
    /// certificate makes the promise. A certificate with only an error bar does not.
    pub fn violates(&self, promise: &Promise, certificate: &Certificate) -> bool {
        !certificate.has_only_bar() && exceeds(self.relative(promise.target), promise.epsilon.get())
    }
}

/// Returns `difference / norm`; 0 if the difference vanishes, infinite if only the norm does or the
/// quotient is NaN, so that undefined errors count as violations and do not lower a mean.
fn relative(difference: f64, norm: f64) -> f64 {
    match difference / norm {
        _ if difference == 0.0 => 0.0,
        error if error.is_nan() => f64::INFINITY,
        error => error,
    }
}

fn norm(x: &Array1<f64>) -> f64 {
    x.dot(x).sqrt()
}

/// Mean and maximum of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MeanMax {
    /// Arithmetic mean.
    pub mean: f64,
    /// Maximum; NaN if any number is NaN.
    pub max: f64,
}

impl MeanMax {
    /// Summarizes numbers; both fields are NaN without any.
    pub(crate) fn new(numbers: impl Iterator<Item = f64>) -> Self {
        let numbers: Vec<f64> = numbers.collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        Self { mean, max: numbers.into_iter().reduce(max_or_nan).unwrap_or(f64::NAN) }
    }
}

/// Distribution of errors over rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ErrorSummary {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median: the smallest error that at least half of the rows do not exceed.
    pub p50: f64,
    /// Smallest error that at least 95 % of the rows do not exceed.
    pub p95: f64,
    /// Maximum.
    pub max: f64,
}

impl ErrorSummary {
    /// Summarizes at least one error; NaN counts as infinite.
    pub(crate) fn new(errors: impl Iterator<Item = f64>) -> Self {
        Self::from_sorted(&sorted(errors))
    }

    /// Summarizes at least one error, in ascending order.
    pub(crate) fn from_sorted(errors: &[f64]) -> Self {
        Self {
            mean: errors.iter().sum::<f64>() / errors.len() as f64,
            p50: quantile(errors, 0.5),
            p95: quantile(errors, 0.95),
            max: quantile(errors, 1.0),
        }
    }
}

/// Returns true if an error exceeds what is allowed; NaN exceeds everything.
pub(crate) fn exceeds(error: f64, allowed: f64) -> bool {
    error.is_nan() || error > allowed
}

/// Returns the largest error, 0 without any; NaN counts as infinite.
pub(crate) fn largest(errors: impl Iterator<Item = f64>) -> f64 {
    errors.map(infinite_if_nan).fold(0.0, f64::max)
}

fn infinite_if_nan(error: f64) -> f64 {
    if error.is_nan() { f64::INFINITY } else { error }
}

/// Sorts errors in ascending order; NaN counts as infinite.
pub(crate) fn sorted(errors: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut errors: Vec<f64> = errors.map(infinite_if_nan).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

/// Returns the smallest error that at least a `share` of the errors do not exceed. There is at
/// least one error, and errors are in ascending order.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((share * sorted.len() as f64).ceil() as usize).max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    fn exact(output: Array1<f64>, log_denominator: f64) -> Exact {
        Exact { output, log_denominator }
    }

    #[test]
    fn errors_are_relative() {
        let exact_row = exact(array![3.0, 4.0], 1.0);
        let row = RowError::new(array![3.0_f32, 5.0].view(), 1.0 + 1.1_f64.ln(), &exact_row);
        assert!((row.relative(Target::Sdpa) - 0.2).abs() < 1e-12);
        assert!((row.relative(Target::Denominator) - 0.1).abs() < 1e-12);
        let numerator = (0.3_f64.powi(2) + 1.5_f64.powi(2)).sqrt() / 5.0;
        assert!((row.relative(Target::Numerator) - numerator).abs() < 1e-12);
        let zero = exact(array![0.0], 0.0);
        let error =
            |output: f32| RowError::new(array![output].view(), 0.0, &zero).relative(Target::Sdpa);
        assert_eq!((error(0.0), error(1.0)), (0.0, f64::INFINITY));
    }

    /// Outputs or denominators that are NaN or infinite have infinite errors.
    #[test]
    fn errors_of_nan_and_of_infinity_are_infinite() {
        let exact_row = exact(array![3.0, 4.0], 0.0);
        let all = [Target::Sdpa, Target::Numerator, Target::Denominator];
        for log_denominator in [f64::NAN, f64::INFINITY] {
            let row = RowError::new(array![3.0_f32, 4.0].view(), log_denominator, &exact_row);
            assert!(all[1..].iter().all(|&target| row.relative(target) == f64::INFINITY));
        }
        for number in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let row = RowError::new(array![3.0_f32, number].view(), 0.0, &exact_row);
            assert!(all[..2].iter().all(|&target| row.relative(target) == f64::INFINITY));
            let epsilon = 0.9.try_into().expect("a fraction");
            let promise = Promise::new(Target::Sdpa, epsilon, epsilon);
            assert!(row.violates(&promise, &Certificate::exact(Some(promise.into()))));
        }
    }

    /// A row whose limit did not suffice has an error bar, and no promise to violate.
    #[test]
    fn only_rows_with_a_promise_violate_it() {
        let row = RowError::new(array![3.0_f32, 0.0].view(), 0.0, &exact(array![3.0, 4.0], 0.0));
        let epsilon = 0.5.try_into().expect("a fraction");
        let promise = Promise::new(Target::Sdpa, epsilon, epsilon);
        let promised = Certificate::exact(Some(promise.into()));
        let only_bar = Certificate { promise: None, ..promised };
        assert!(row.violates(&promise, &promised) && !row.violates(&promise, &only_bar));
    }

    #[test]
    fn nan_is_the_largest_error_and_exceeds_everything() {
        for nan in [f64::NAN, -f64::NAN] {
            assert!(exceeds(nan, 0.1) && exceeds(nan, f64::INFINITY));
            assert_eq!(largest([0.5, nan, 1.0].into_iter()), f64::INFINITY);
            let summary = ErrorSummary::new([nan, 0.25, 0.5].into_iter());
            assert_eq!((summary.p50, summary.max), (0.5, f64::INFINITY));
            assert!(MeanMax::new([nan, 1.0].into_iter()).max.is_nan());
        }
        assert!(!exceeds(0.1, 0.1) && exceeds(0.2, 0.1));
        assert_eq!(largest([0.5, 2.0, 1.0].into_iter()), 2.0);
    }

    #[test]
    fn quantiles_are_the_smallest_errors_that_cover_a_share() {
        let summary = ErrorSummary::new((1..=20).rev().map(f64::from));
        assert_eq!((summary.p50, summary.p95, summary.max), (10.0, 19.0, 20.0));
        assert_eq!(summary.mean, 10.5);
        assert_eq!(ErrorSummary::new([7.0].into_iter()).p50, 7.0);
    }
}
