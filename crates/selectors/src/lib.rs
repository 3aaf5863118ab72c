//! Token selectors, one strategy per file.
//!
//! Linking this crate makes them known to pipeline files; the `vattention` facade does.

mod h2o;
mod hash_attention;
mod inf_llm;
mod kept;
mod learned;
mod oracle_top_k;
mod oracle_top_p;
mod sink;
mod snapkv;
mod tensor_file;
mod window;

pub use h2o::H2o;
pub use hash_attention::{Activation, Bits, Codes, CodesOf, HashAttention};
pub use inf_llm::InfLlm;
pub use oracle_top_k::OracleTopK;
pub use oracle_top_p::{MassOf, OracleTopP};
pub use sink::Sink;
pub use snapkv::{Odd, Pooling, SnapKv};
pub use window::Window;
