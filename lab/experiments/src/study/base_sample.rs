//! `base-sample`: accuracy of variances that are estimated from a base sample.
//!
//! The study measures, by the sample's size, the relative error `|s² − σ²| / σ²` of the variance of
//! `e`, and the relative errors of the traces of the covariances of `e v` and of `w = e (v − o)`.
//! For kurtosis κ, the root mean square of the first error is about `√((κ − 1) / b)`, which
//! decreases slowly for heavy tails.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::SampleStats;

use super::measure::Study;
use super::options::BaseSampleOptions;
use super::population::ResidualPopulation;
use super::sizes::{count_common, sort_sizes};
use crate::{ErrorSummary, Result};

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BaseSample {
    /// File of the trace, as given.
    pub trace: String,
    /// Number of samples of each row.
    pub trials: u32,
    /// Sizes that are smaller than every row's residual, ascending.
    pub sizes: Vec<BaseSize>,
}

/// Base samples of one size.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct BaseSize {
    /// Sample size in tokens.
    pub tokens: usize,
    /// Relative error of the variance of `e`, over rows and samples.
    pub variance: ErrorSummary,
    /// Relative error of the trace of the covariance of `e v`.
    pub trace_numerator: ErrorSummary,
    /// Relative error of the trace of the covariance of `w`.
    pub trace_output: ErrorSummary,
}

/// Relative errors from one sample: of the variances of `e`, `e v` and `w`.
type BaseSampleErrors = [f64; 3];

/// Measures base samples of several sizes.
///
/// # Errors
/// If a setting does not fit the trace, or the trace is damaged or too short.
pub fn base_sample(study: &Study<'_>, options: &BaseSampleOptions) -> Result<BaseSample> {
    let trials = options.trials;
    let sizes = sort_sizes(&options.sizes, 2)?;
    let rows = study.measure(trials, |row| sample_errors(row, &sizes, trials))?;
    let fit = count_common(&sizes, &rows)?;
    let size = |i: usize| {
        let summary = |k: usize| {
            ErrorSummary::new(rows.iter().flat_map(|row| &row[i]).map(|errors| errors[k]))
        };
        BaseSize {
            tokens: sizes[i],
            variance: summary(0),
            trace_numerator: summary(1),
            trace_output: summary(2),
        }
    };
    let sizes = (0..fit).map(size).collect();
    Ok(BaseSample { trace: study.trace_name(), trials, sizes })
}

/// Returns the errors of all samples of one row, for each size that is smaller than its residual.
fn sample_errors(
    row: &ResidualPopulation,
    sizes: &[usize],
    trials: u32,
) -> Vec<Vec<BaseSampleErrors>> {
    let truth = row.truth();
    let fit = sizes.partition_point(|&size| size < row.len());
    let mut all = vec![Vec::new(); fit];
    for trial in 0..trials {
        let order = row.draw_order(trial);
        for (errors, &size) in all.iter_mut().zip(sizes) {
            errors.push(relative_errors(&row.sample_stats(&order, size), &truth));
        }
    }
    all
}

fn relative_errors(sample: &SampleStats, truth: &SampleStats) -> BaseSampleErrors {
    let relative = |a: f64, b: f64| if a == b { 0.0 } else { (a - b).abs() / b };
    [
        relative(sample.var_e, truth.var_e),
        relative(sample.trace_ev, truth.trace_ev),
        relative(sample.trace_w, truth.trace_w),
    ]
}
