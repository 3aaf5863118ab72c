//! Relative errors, and their summaries over rows.

use ndarray::{Array1, ArrayView1};
use serde::Serialize;
use vattention_core::{Promise, Target};

use crate::Exact;

/// How far one row is from exact attention, relative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowError {
    pub(crate) output: f64,
    pub(crate) denominator: f64,
    pub(crate) numerator: f64,
}

impl RowError {
    /// The errors of `N^/D^` `[value_dim]` and `ln D^`.
    pub(crate) fn new(output: ArrayView1<'_, f32>, log_denominator: f64, exact: &Exact) -> Self {
        let output = output.mapv(f64::from);
        let ratio = (log_denominator - exact.log_denominator).exp();
        Self {
            output: relative(&output, &exact.output),
            denominator: (ratio - 1.0).abs(),
            numerator: relative(&(output * ratio), &exact.output),
        }
    }

    pub(crate) fn of(&self, target: Target) -> f64 {
        match target {
            Target::Sdpa => self.output,
            Target::Denominator => self.denominator,
            Target::Numerator => self.numerator,
        }
    }
}

impl RowError {
    /// Whether the error of the promised target is more than epsilon, or not a number.
    pub(crate) fn exceeds(&self, promise: &Promise) -> bool {
        let error = self.of(promise.target);
        error.is_nan() || error > promise.epsilon.get()
    }
}

/// `|a − b| / |b|`; 0 if both vanish, infinite if only `b` does.
fn relative(a: &Array1<f64>, b: &Array1<f64>) -> f64 {
    let norm = |x: &Array1<f64>| x.dot(x).sqrt();
    let difference = norm(&(a - b));
    if difference == 0.0 { 0.0 } else { difference / norm(b) }
}

/// Mean and largest of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeanMax {
    /// The arithmetic mean.
    pub mean: f64,
    /// The largest.
    pub max: f64,
}

impl MeanMax {
    /// Of at least one number.
    pub(crate) fn new(numbers: impl Iterator<Item = f64>) -> Self {
        let numbers: Vec<f64> = numbers.collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        Self { mean, max: numbers.into_iter().fold(f64::NEG_INFINITY, f64::max) }
    }
}

/// A distribution of errors over rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ErrorSummary {
    /// The arithmetic mean.
    pub mean: f64,
    /// The smallest error that at least half of the rows do not exceed.
    pub p50: f64,
    /// The smallest error that at least 95 % of the rows do not exceed.
    pub p95: f64,
    /// The largest.
    pub max: f64,
}

impl ErrorSummary {
    /// Of at least one error.
    pub(crate) fn new(errors: impl Iterator<Item = f64>) -> Self {
        let mut errors: Vec<f64> = errors.collect();
        errors.sort_by(f64::total_cmp);
        let rank = |share: f64| errors[((share * errors.len() as f64).ceil() as usize).max(1) - 1];
        Self {
            mean: errors.iter().sum::<f64>() / errors.len() as f64,
            p50: rank(0.5),
            p95: rank(0.95),
            max: rank(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn errors_are_relative() {
        let exact = Exact { output: array![3.0, 4.0], log_denominator: 1.0 };
        let row = RowError::new(array![3.0_f32, 5.0].view(), 1.0 + 1.1_f64.ln(), &exact);
        assert!((row.of(Target::Sdpa) - 0.2).abs() < 1e-12);
        assert!((row.of(Target::Denominator) - 0.1).abs() < 1e-12);
        let numerator = (0.3_f64.powi(2) + 1.5_f64.powi(2)).sqrt() / 5.0;
        assert!((row.of(Target::Numerator) - numerator).abs() < 1e-12);
        let zero = Exact { output: array![0.0], log_denominator: 0.0 };
        assert_eq!(RowError::new(array![0.0_f32].view(), 0.0, &zero).output, 0.0);
        assert_eq!(RowError::new(array![1.0_f32].view(), 0.0, &zero).output, f64::INFINITY);
    }

    #[test]
    fn ranks_are_the_smallest_that_cover() {
        let summary = ErrorSummary::new((1..=20).rev().map(f64::from));
        assert_eq!((summary.p50, summary.p95, summary.max), (10.0, 19.0, 20.0));
        assert_eq!(summary.mean, 10.5);
        assert_eq!(ErrorSummary::new([7.0].into_iter()).p50, 7.0);
    }
}
