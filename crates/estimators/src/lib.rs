//! Budget estimators, one bound per file, and the statistics they share.
//!
//! Linking this crate makes them known to pipeline files; the `vattention` facade does.
//! The formulas are public in [`formula`], for tests and for other estimators to build on; equation
//! numbers are those of `docs/guarantees.md`.

mod clt;
mod conversion;
mod hoeffding;
mod mode;
mod moments;
mod observed;
mod ratio;
mod rigorous;
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
