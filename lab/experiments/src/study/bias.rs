//! `bias`: what of an output's error is bias, and what variance.
//!
//! What the top-k leaves out is the same at every step: its error is bias, which does not average out
//! over a text's tokens. A sample's ratio of two sums is biased, too, by `O(1 / b)`, where its
//! standard deviation is `O(1 / √b)`. Told as root mean squares over rows of `‖E o^ − o‖ / ‖o‖` and of
//! `√(E ‖o^ − E o^‖²) / ‖o‖`, where the mean of `t` samples stands for `E o^`; what its own variance
//! adds to the first, a `t`-th, is taken off.

use ndarray::Array1;
use serde::Serialize;
use vattention_core::{Fraction, Size};

use super::measure::Study;
use super::options::BiasOptions;
use super::population::ResidualPopulation;
use crate::metrics::mean;
use crate::{Error, Result};

/// What the study found.
#[derive(Clone, Debug, Serialize)]
pub struct Bias {
    /// The trace's file, as given.
    pub trace: String,
    /// Samples of each row.
    pub trials: u32,
    /// In the order asked for.
    pub sizes: Vec<BiasSize>,
}

/// As many tokens more than the natural configuration's selectors read, by two means.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BiasSize {
    /// Tokens that are read besides, a share of the visible ones.
    pub share: f64,
    /// If they are those with the largest scores: the error, all of it bias.
    pub top_k: f64,
    /// If they are a uniform sample: the bias.
    pub bias: f64,
    /// The standard deviation of the same.
    pub deviation: f64,
}

/// Squares of one row at one size, relative to its output's: top-k's error, a sample's bias, its
/// variance.
type SquareSums = [f64; 3];

/// Measures bias and variance of outputs that read shares of the tokens besides.
///
/// # Errors
/// A setting that does not fit the trace, or a trace that is damaged or too short.
pub fn bias(study: &Study<'_>, options: &BiasOptions) -> Result<Bias> {
    let BiasOptions { shares, trials } = options;
    let trials = *trials;
    if trials < 2 {
        let reason = format!("{trials}; expected at least 2, to tell a variance");
        return Err(Error::Setting { field: "trials", reason });
    }
    let rows = study.measure(trials, |row| squares(row, shares, trials))?;
    let size = |(i, share): (usize, &Fraction)| {
        let [top_k, bias, deviation] =
            [0, 1, 2].map(|part| mean(rows.iter().map(|row| row[i][part])).max(0.0).sqrt());
        BiasSize { share: share.get(), top_k, bias, deviation }
    };
    let sizes = shares.iter().enumerate().map(size).collect();
    Ok(Bias { trace: study.trace_name(), trials, sizes })
}

fn squares(row: &ResidualPopulation, shares: &[Fraction], trials: u32) -> Vec<SquareSums> {
    let tokens =
        |&share: &Fraction| Size::Share(share).to_tokens(row.visible()).clamp(1, row.len());
    let sizes: Vec<usize> = shares.iter().map(tokens).collect();
    let mut sums = vec![BiasSums::default(); sizes.len()];
    for trial in 0..trials {
        let deviations = row.deviations(&row.order(trial), &sizes);
        sums.iter_mut().zip(deviations).for_each(|(sums, deviation)| sums.add(deviation));
    }
    let order = row.by_weight();
    let relative = |square: f64| if square == 0.0 { 0.0 } else { square / row.square() };
    let squares = |(sums, &size): (&BiasSums, &usize)| {
        let top_k = row.with_certain(&order[..size]).deviations(&[], &[0]);
        let [bias, variance] = sums.bias_and_variance();
        [square(&top_k[0]), bias, variance].map(relative)
    };
    sums.iter().zip(&sizes).map(squares).collect()
}

/// Sums over samples of an output's deviation from the exact one.
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

    /// Unbiased estimates of the bias's square, which may be below 0, and of the variance.
    fn bias_and_variance(&self) -> [f64; 2] {
        let of_mean = square(&self.deviation) / self.count.powi(2);
        let variance = (self.square - self.count * of_mean) / (self.count - 1.0);
        [of_mean - variance / self.count, variance]
    }
}

fn square(x: &Array1<f64>) -> f64 {
    x.dot(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_and_variance_are_those_of_the_definition() {
        let mut sums = BiasSums::default();
        for x in [[3.0, 0.0], [5.0, 1.0], [4.0, -1.0]] {
            sums.add(Array1::from_vec(x.to_vec()));
        }
        // The mean is (4, 0); squares from it sum to 1 + (1 + 1) + 1 = 4.
        let [bias, variance] = sums.bias_and_variance();
        assert!((variance - 2.0).abs() < 1e-12 && (bias - (16.0 - 2.0 / 3.0)).abs() < 1e-12);
    }
}
