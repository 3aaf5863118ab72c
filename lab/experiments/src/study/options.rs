//! The options of studies, with the defaults that the command and the Python package take.

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
    /// The relative error allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
    /// Samples of each row, at least 1.
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
    /// The relative errors allowed.
    pub epsilons: Vec<Fraction>,
    /// The probability with which they may be exceeded.
    pub delta: Fraction,
    /// Samples of each row, at least 1.
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
    /// Tokens in the sample, at least 2; those that no row has are left out.
    pub sizes: Vec<usize>,
    /// Samples of each row, at least 1.
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
    /// Tokens in the sample, at least 1; those that no row has are left out.
    pub sizes: Vec<usize>,
    /// Samples of each row, at least 1.
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
    /// Tokens that top-k and the sample read besides sink and window, of all.
    pub share: Fraction,
    /// The softmax mass that top-p holds.
    pub mass: Fraction,
    /// Samples of each row, at least 1.
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
    /// Tokens read besides sink, window and top 5 %, of all.
    pub shares: Vec<Fraction>,
    /// Samples of each row, at least 2, to know a variance.
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
    /// Shares of the samples whose error may exceed its bar.
    pub deltas: Vec<Fraction>,
    /// Samples of each head, spread over its queries.
    pub trials: u32,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self { deltas: fractions([0.02, 0.05, 0.1, 0.2, 0.3, 0.5]), trials: 500 }
    }
}

/// Options of `pareto` and `limit`: what a sample by `ratio`, or the limit, promises of the output.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromiseOptions {
    /// The relative error of the output allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
}

impl Default for PromiseOptions {
    fn default() -> Self {
        Self { epsilon: fraction(0.1), delta: fraction(0.1) }
    }
}
