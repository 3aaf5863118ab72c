//! Errors against exact attention, and the evidence that they give on a promise. All measurements
//! share these definitions.

mod bars;
pub mod binomial;
mod block_mean;
mod errors;
mod evidence;
mod paired;
mod recall;
mod share_interval;
mod violations;

pub use bars::{Bars, BarsSummary};
pub use block_mean::{BlockMean, MeanInterval};
pub use errors::{ErrorSummary, MeanMax, RowError};
pub use evidence::{CountTest, Evidence, LEVEL, SUSPICION};
pub use paired::PairedDifference;
pub use share_interval::ShareInterval;
pub use violations::{ListCounts, ViolationCount, Violations};

pub(crate) use bars::ROUNDING;
pub(crate) use errors::{exceeds, largest, quantile, sorted};
pub(crate) use recall::ExactWeights;

/// Mean of numbers; NaN without any.
pub(crate) fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    MeanMax::new(numbers).mean
}
