//! `bias`: decomposition of the output's error into bias and variance.
//!
//! The error of top-k is bias: it does not average out over the tokens of a text. A sample's ratio
//! of two sums is biased as well, by `O(1 / b)`, where its standard deviation is `O(1 / √b)`. The
//! study reports root mean squares over rows of `‖E o^ − o‖ / ‖o‖` and of
//! `√(E ‖o^ − E o^‖²) / ‖o‖`. The mean of `t` samples is used as `E o^`; its own variance, a `t`-th
//! of a sample's, is subtracted from the squared bias.

use ndarray::Array1;
use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{Fraction, Size};

use super::measure::Study;
use super::options::BiasOptions;
use super::population::ResidualPopulation;
use crate::metrics::mean;
use crate::{Error, Result};

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Bias {
    /// File of the trace, as given.
    pub trace: String,
    /// Number of samples of each row.
    pub trials: u32,
    /// Results by number of additional tokens, in the order given.
    pub sizes: Vec<BiasSize>,
}

/// Bias and deviation of reading a number of tokens besides those of the natural configuration's
/// selectors, by top-k or by a sample.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct BiasSize {
    /// Number of additional tokens, as a share of the visible tokens.
    pub share: f64,
    /// Error if the additional tokens are those with the largest scores, all of which is bias.
    pub top_k: f64,
    /// Bias if the additional tokens are a uniform sample.
    pub bias: f64,
    /// Standard deviation if the additional tokens are a uniform sample.
    pub deviation: f64,
}

/// Squared error of top-k, squared bias of a sample, and its variance, relative to the squared norm
/// of the row's output.
type SquareSums = [f64; 3];

/// Measures bias and variance of outputs that read additional shares of the tokens.
///
/// # Errors
/// If a setting does not fit the trace, or the trace is damaged or too short.
pub fn bias(study: &Study<'_>, options: &BiasOptions) -> Result<Bias> {
    let BiasOptions { shares, trials } = options;
    let trials = *trials;
    if trials < 2 {
        let reason = format!("{trials}; expected at least 2, to estimate a variance");
        return Err(Error::Setting { field: "trials", reason });
    }
    let rows = study.measure(trials, |row| measure_squares(row, shares, trials))?;
    let size = |(i, share): (usize, &Fraction)| {
        let [top_k, bias, deviation] =
            [0, 1, 2].map(|part| mean(rows.iter().map(|row| row[i][part])).max(0.0).sqrt());
        BiasSize { share: share.get(), top_k, bias, deviation }
    };
    let sizes = shares.iter().enumerate().map(size).collect();
    Ok(Bias { trace: study.trace_name(), trials, sizes })
}

fn measure_squares(row: &ResidualPopulation, shares: &[Fraction], trials: u32) -> Vec<SquareSums> {
    let tokens =
        |&share: &Fraction| Size::Share(share).to_tokens(row.visible()).clamp(1, row.len());
    let sizes: Vec<usize> = shares.iter().map(tokens).collect();
    let mut sums = vec![BiasSums::default(); sizes.len()];
    for trial in 0..trials {
        let deviations = row.deviations(&row.draw_order(trial), &sizes);
        sums.iter_mut().zip(deviations).for_each(|(sums, deviation)| sums.add(deviation));
    }
    let order = row.sort_by_weight();
    let relative = |square: f64| if square == 0.0 { 0.0 } else { square / row.square() };
    let squares = |(sums, &size): (&BiasSums, &usize)| {
        let top_k = row.with_always_read(&order[..size]).deviations(&[], &[0]);
        let [bias, variance] = sums.bias_and_variance();
        [square(&top_k[0]), bias, variance].map(relative)
    };
    sums.iter().zip(&sizes).map(squares).collect()
}

/// Sums over samples of the output's deviation from the exact output.
#[derive(Clone, Default)]
struct BiasSums {
    deviation: Array1<f64>,
    square: f64,
    count: f64,
}

impl BiasSums {
    fn add(&mut self, deviation: Array1<f64>) {
        self.square += square(&deviation);
        self.count += 1.0;
        self.deviation = if self.count == 1.0 { deviation } else { &self.deviation + &deviation };
    }

    /// Unbiased estimates of the squared bias, which may be negative, and of the variance.
    fn bias_and_variance(&self) -> [f64; 2] {
        let mean_square = square(&self.deviation) / self.count.powi(2);
        let variance = (self.square - self.count * mean_square) / (self.count - 1.0);
        [mean_square - variance / self.count, variance]
    }
}

fn square(x: &Array1<f64>) -> f64 {
    x.dot(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_and_variance_follow_their_definitions() {
        let mut sums = BiasSums::default();
        for x in [[3.0, 0.0], [5.0, 1.0], [4.0, -1.0]] {
            sums.add(Array1::from_vec(x.to_vec()));
        }
        // The mean is (4, 0); squared distances from the mean sum to 1 + (1 + 1) + 1 = 4.
        let [bias, variance] = sums.bias_and_variance();
        assert!((variance - 2.0).abs() < 1e-12 && (bias - (16.0 - 2.0 / 3.0)).abs() < 1e-12);
    }
}
