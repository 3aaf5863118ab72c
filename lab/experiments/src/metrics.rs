//! How far answers are from exact attention, and what that says of a promise: once, for everything
//! that measures.

mod bars;
pub mod binomial;
mod errors;
mod evidence;
mod paired;
mod recall;
mod share_interval;
mod violations;

pub use bars::{Bars, BarsSummary};
pub use errors::{ErrorSummary, MeanMax, RowError};
pub use evidence::{CountTest, Evidence, LEVEL, SUSPICION};
pub use paired::PairedDifference;
pub use share_interval::ShareInterval;
pub use violations::{TokenLists, ViolationCount, Violations};

pub(crate) use bars::ROUNDING;
pub(crate) use errors::{exceeds, largest, quantile, sorted};
pub(crate) use recall::ExactWeights;

/// Mean of numbers; 0 without any.
pub(crate) fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    MeanMax::new(numbers).mean
}
