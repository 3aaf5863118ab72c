//! Learning what selectors need from traces: channels ([`Channels`]), bases ([`Bases`]) and hash
//! maps ([`hash`]).

mod corpus;
mod double_sparsity;
mod error;
pub mod hash;
mod loki;

pub use corpus::Corpus;
pub use double_sparsity::Channels;
pub use error::{Error, Result};
pub use loki::{Bases, Basis};

#[cfg(test)]
mod planted;
