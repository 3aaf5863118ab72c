//! Studies of the assumptions of a promise: the experiments of "vAttention: Verified Sparse
//! Attention" (2025), <https://arxiv.org/abs/2510.05688>, on any trace.
//!
//! Studies that draw samples compute the true moments of each row's whole residual, so that they
//! measure a bound or an estimator in isolation. All studies are deterministic.

mod base_sample;
mod bias;
mod calibration;
mod coverage;
mod epsilon;
mod head;
mod limit;
mod measure;
mod natural;
mod normality;
mod options;
mod pareto;
mod population;
mod sensitivity;
mod sizes;
mod tightness;

pub use base_sample::{BaseSample, BaseSize, base_sample};
pub use bias::{Bias, BiasSize, bias};
pub use calibration::{AtDelta, Calibrated, Calibration, calibration};
pub use coverage::{Coverage, CoverageMethod, RowCoverage, coverage};
pub use epsilon::{EpsilonPoint, EpsilonSeries, EpsilonStudy, epsilon};
pub use limit::{HeadLimit, LimitStudy, limit};
pub use measure::Study;
pub use normality::{Normality, NormalitySize, normality};
pub use options::{
    BaseSampleOptions, BiasOptions, CalibrationOptions, CoverageOptions, EpsilonOptions,
    NormalityOptions, PromiseOptions, TightnessOptions,
};
pub use pareto::{Pareto, pareto};
pub use sensitivity::{Sensitivity, Variation, sensitivity};
pub use tightness::{BoundCount, HeadBound, Tightness, tightness};
