//! Training and calibration of selectors on traces: channels ([`Channels`]), bases ([`Bases`]),
//! gates of heads ([`Gates`]) and hash maps ([`hash`]).

mod corpus;
mod double_sparsity;
mod duo_attention;
mod error;
pub mod hash;
mod loki;

pub use corpus::Corpus;
pub use double_sparsity::Channels;
pub use duo_attention::Gates;
pub use error::{Error, Result};
pub use loki::{Bases, Basis};

#[cfg(test)]
mod test_traces;
