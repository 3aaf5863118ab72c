//! Options of studies, with the defaults of the command and of the Python package.

use serde::Deserialize;
use vattention_core::Fraction;

use super::natural::fraction;

fn fractions<const N: usize>(numbers: [f64; N]) -> Vec<Fraction> {
    numbers.map(fraction).into()
}

/// Options of `tightness`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TightnessOptions {
    /// Allowed relative error.
    pub epsilon: Fraction,
    /// Probability with which the error may exceed epsilon.
    pub delta: Fraction,
    /// Number of samples of each row, at least 1.
    pub trials: u32,
}

impl Default for TightnessOptions {
    fn default() -> Self {
        Self { epsilon: fraction(0.05), delta: fraction(0.2), trials: 200 }
    }
}

/// Options of `epsilon`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EpsilonOptions {
    /// Allowed relative errors.
    pub epsilons: Vec<Fraction>,
    /// Probability with which the error may exceed epsilon.
    pub delta: Fraction,
    /// Number of samples of each row, at least 1.
    pub trials: u32,
}

impl Default for EpsilonOptions {
    fn default() -> Self {
        let epsilons = fractions([0.05, 0.1, 0.15, 0.2, 0.25, 0.3]);
        Self { epsilons, delta: fraction(0.1), trials: 20 }
    }
}

/// Options of `base_sample`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BaseSampleOptions {
    /// Sample sizes, at least 2; sizes that are not below the residual of every row are left out.
    pub sizes: Vec<usize>,
    /// Number of samples of each row, at least 1.
    pub trials: u32,
}

impl Default for BaseSampleOptions {
    fn default() -> Self {
        Self { sizes: vec![64, 128, 256, 512, 1000, 2000, 4000], trials: 10 }
    }
}

/// Options of `normality`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NormalityOptions {
    /// Sample sizes, at least 1; sizes that are not below the residual of every row are left out.
    pub sizes: Vec<usize>,
    /// Number of samples of each row, at least 1.
    pub trials: u32,
}

impl Default for NormalityOptions {
    fn default() -> Self {
        Self { sizes: vec![4, 16, 64, 256, 1024], trials: 200 }
    }
}

/// Options of `coverage`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoverageOptions {
    /// Number of tokens that top-k and the sample read besides sink and window, as a share of the
    /// visible tokens.
    pub share: Fraction,
    /// Attention weight that top-p covers.
    pub mass: Fraction,
    /// Number of samples of each row, at least 1.
    pub trials: u32,
}

impl Default for CoverageOptions {
    fn default() -> Self {
        Self { share: fraction(0.05), mass: fraction(0.9), trials: 20 }
    }
}

/// Options of `bias`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BiasOptions {
    /// Numbers of tokens read besides sink, window and top 5 %, as shares of the visible tokens.
    pub shares: Vec<Fraction>,
    /// Number of samples of each row, at least 2, to estimate a variance.
    pub trials: u32,
}

impl Default for BiasOptions {
    fn default() -> Self {
        Self { shares: fractions([0.01, 0.02, 0.05, 0.1, 0.2]), trials: 100 }
    }
}

/// Options of `calibration`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrationOptions {
    /// Probabilities with which an error may exceed its bar.
    pub deltas: Vec<Fraction>,
    /// Number of samples of each head, spread over its queries.
    pub trials: u32,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self { deltas: fractions([0.02, 0.05, 0.1, 0.2, 0.3, 0.5]), trials: 500 }
    }
}

/// Options of `pareto` and `limit`: a promise on the output, which samples by `ratio` make in
/// `pareto`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromiseOptions {
    /// Allowed relative error of the output.
    pub epsilon: Fraction,
    /// Probability with which the error may exceed epsilon.
    pub delta: Fraction,
}

impl Default for PromiseOptions {
    fn default() -> Self {
        Self { epsilon: fraction(0.1), delta: fraction(0.1) }
    }
}
