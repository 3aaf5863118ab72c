//! `normality`: distance of the denominator's estimate from a normal distribution.
//!
//! The study measures the standardised error `(D^ − D) / (n_s σ √(1/b − 1/n_s))`, which is standard
//! normal in the limit by the central limit theorem, over many samples, pooled over rows. It
//! reports quantiles, the Kolmogorov distance `max |F − Φ|`, and the share beyond the normal
//! distribution's outer 5 %.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_estimators::formula::{z_one, z_two};

use super::measure::Study;
use super::options::NormalityOptions;
use super::population::ResidualPopulation;
use super::sizes::{count_common, sort_sizes};
use crate::Result;

/// Probabilities of the reported quantiles; their complements are reported too.
const TAILS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4];

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Normality {
    /// File of the trace, as given.
    pub trace: String,
    /// Number of samples of each row.
    pub trials: u32,
    /// Sizes that are smaller than every row's residual, ascending.
    pub sizes: Vec<NormalitySize>,
}

/// Samples of one size.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NormalitySize {
    /// Sample size in tokens.
    pub tokens: usize,
    /// Largest distance of the distribution functions.
    pub kolmogorov: f64,
    /// Share of errors beyond ±1.96, which is 0.05 for a normal distribution.
    pub beyond: f64,
    /// Pairs of a normal quantile and the measured quantile, ascending.
    pub quantiles: Vec<(f64, f64)>,
}

/// Measures samples of several sizes.
///
/// # Errors
/// If a setting does not fit the trace, or the trace is damaged or too short.
pub fn normality(study: &Study<'_>, options: &NormalityOptions) -> Result<Normality> {
    let trials = options.trials;
    let sizes = sort_sizes(&options.sizes, 1)?;
    let rows = study.measure(trials, |row| standardised_errors(row, &sizes, trials))?;
    let fit = count_common(&sizes, &rows)?;
    let size = |i: usize| {
        let pooled = rows.iter().flat_map(|row| row[i].iter().copied()).collect();
        NormalitySize::new(sizes[i], pooled)
    };
    let sizes = (0..fit).map(size).collect();
    Ok(Normality { trace: study.trace_name(), trials, sizes })
}

/// Returns the standardised errors of one row, for each size that is smaller than its residual. If
/// all weights are equal, there is no error to standardise, and it counts as 0.
fn standardised_errors(row: &ResidualPopulation, sizes: &[usize], trials: u32) -> Vec<Vec<f64>> {
    let truth = row.truth();
    let n_s = row.len() as f64;
    let fit = sizes.partition_point(|&size| size < row.len());
    let mut errors = vec![Vec::new(); fit];
    for trial in 0..trials {
        let estimates = row.denominators(&row.draw_order(trial), &sizes[..fit]);
        for ((errors, d), &b) in errors.iter_mut().zip(estimates).zip(sizes) {
            let deviation = n_s * (truth.var_e * (1.0 / b as f64 - 1.0 / n_s)).sqrt();
            errors.push(if deviation > 0.0 { (d - truth.d) / deviation } else { 0.0 });
        }
    }
    errors
}

impl NormalitySize {
    fn new(tokens: usize, mut errors: Vec<f64>) -> Self {
        errors.sort_by(f64::total_cmp);
        let count = errors.len() as f64;
        let lower = TAILS.iter().copied();
        let upper = TAILS.iter().rev().map(|tail| 1.0 - tail);
        let quantile = |p: f64| (-z_one(p), errors[((p * count) as usize).min(errors.len() - 1)]);
        let beyond = errors.iter().filter(|error| error.abs() > z_two(0.05)).count();
        Self {
            tokens,
            kolmogorov: kolmogorov(&errors),
            beyond: beyond as f64 / count,
            quantiles: lower.chain([0.5]).chain(upper).map(quantile).collect(),
        }
    }
}

/// Returns the largest distance between the distribution function of ascending numbers and the
/// standard normal one.
fn kolmogorov(numbers: &[f64]) -> f64 {
    let count = numbers.len() as f64;
    let distance = |(i, &x): (usize, &f64)| {
        let normal = 0.5 * statrs::function::erf::erfc(-x / std::f64::consts::SQRT_2);
        (normal - i as f64 / count).abs().max((normal - (i + 1) as f64 / count).abs())
    };
    numbers.iter().enumerate().map(distance).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kolmogorov_distances_of_known_samples() {
        assert!((kolmogorov(&[0.0]) - 0.5).abs() < 1e-12);
        assert!((kolmogorov(&[-40.0, 40.0]) - 0.5).abs() < 1e-12);
        let quantiles: Vec<f64> =
            (0..1000).map(|i| -z_one((f64::from(i) + 0.5) / 1000.0)).collect();
        assert!((kolmogorov(&quantiles) - 0.0005).abs() < 1e-9);
    }
}
