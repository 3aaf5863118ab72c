//! How far answers are from exact attention, and what that says of a promise: once, for everything
//! that measures.

pub mod binomial;
mod errors;
mod recall;

pub use errors::{ErrorSummary, MeanMax, RowError};

pub(crate) use errors::{exceeds, quantile, sorted};
pub(crate) use recall::Attention;
