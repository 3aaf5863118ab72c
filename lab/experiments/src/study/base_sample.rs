//! `base-sample`: how well a base sample knows the residual's spread.
//!
//! The relative errors `|s² − σ²| / σ²` of the variance of `e`, and the same of the traces of the
//! covariances of `e v` and of `w = e (v − o)`, by the sample's size. For kurtosis κ the first is
//! about `√((κ − 1) / b)` in the root mean square: slow to fall where tails are heavy.

use serde::Serialize;
use vattention_core::SampleStats;

use super::measure::Study;
use super::options::BaseSampleOptions;
use super::population::ResidualPopulation;
use super::sizes::{ascending, common};
use crate::{ErrorSummary, Result};

/// What the study found.
#[derive(Clone, Debug, Serialize)]
pub struct BaseSample {
    /// The trace's file, as given.
    pub trace: String,
    /// Samples of each row.
    pub trials: u32,
    /// In ascending order, those that are smaller than every row's residual.
    pub sizes: Vec<BaseSize>,
}

/// Base samples of one size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BaseSize {
    /// Tokens in the sample.
    pub tokens: usize,
    /// Relative error of the variance of `e`, over rows and samples.
    pub variance: ErrorSummary,
    /// Relative error of the trace of the covariance of `e v`.
    pub trace_numerator: ErrorSummary,
    /// Relative error of the trace of the covariance of `w`.
    pub trace_output: ErrorSummary,
}

/// Relative errors of one look: `e`, `e v`, `w`.
type BaseSampleErrors = [f64; 3];

/// Measures base samples of several sizes.
///
/// # Errors
/// A setting that does not fit the trace, or a trace that is damaged or too short.
pub fn base_sample(study: &Study<'_>, options: &BaseSampleOptions) -> Result<BaseSample> {
    let trials = options.trials;
    let sizes = ascending(&options.sizes, 2)?;
    let rows = study.measure(trials, |row| looks(row, &sizes, trials))?;
    let fit = common(&sizes, &rows)?;
    let size = |i: usize| {
        let summary =
            |k: usize| ErrorSummary::new(rows.iter().flat_map(|row| &row[i]).map(|look| look[k]));
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

/// The looks at one row, for each size that is smaller than its residual.
fn looks(row: &ResidualPopulation, sizes: &[usize], trials: u32) -> Vec<Vec<BaseSampleErrors>> {
    let truth = row.truth();
    let fit = sizes.partition_point(|&size| size < row.len());
    let mut looks = vec![Vec::new(); fit];
    for trial in 0..trials {
        let order = row.order(trial);
        for (looks, &size) in looks.iter_mut().zip(sizes) {
            looks.push(errors(&row.look(&order, size), &truth));
        }
    }
    looks
}

fn errors(look: &SampleStats, truth: &SampleStats) -> BaseSampleErrors {
    let relative = |a: f64, b: f64| if a == b { 0.0 } else { (a - b).abs() / b };
    [
        relative(look.var_e, truth.var_e),
        relative(look.trace_ev, truth.trace_ev),
        relative(look.trace_w, truth.trace_w),
    ]
}
