//! Budget estimators, one bound per file, and the statistics they share.
//!
//! Linking this crate makes them known to pipeline files; the `vattention` facade does.
//! The formulas are public in [`formula`], for tests and for other estimators to build on.

mod clt;
mod fixed;
mod ratio;

pub mod formula;

pub use clt::{Clt, Combine, Correction};
pub use fixed::Fixed;
pub use ratio::{Ratio, RatioTarget};
