//! Estimators of the sample size, one bound per file, and the statistics that they share.
//!
//! Linking this crate registers the estimators for pipeline files; the `vattention` facade links
//! it. The formulas are public in [`formula`], for tests and for custom estimators; equation
//! numbers are those of `docs/guarantees.md`.

mod clt;
mod conversion;
mod hoeffding;
mod mode;
mod moments;
mod ratio;
mod rigorous;
mod sample_means;
mod strict;
mod sub_gaussian;
mod terms;
mod unseen;

pub mod formula;

pub use clt::Clt;
pub use formula::Combine;
pub use hoeffding::Hoeffding;
pub use mode::Mode;
pub use ratio::{Ratio, RatioTarget};
pub use sub_gaussian::SubGaussian;
pub use terms::{Correction, Terms};
