//! Token selectors, one strategy per file.
//!
//! Linking this crate makes them known to pipeline files; the `vattention` facade does.

mod hash_attention;
mod magic_pig;
mod oracle_top_k;
mod oracle_top_p;
mod sink;
mod tensor_file;
mod top_p;
mod twilight;
mod window;

pub use hash_attention::{Activation, Bits, Codes, CodesOf, HashAttention};
pub use magic_pig::{BLOCK, Collisions, Lsh, MagicPig, Rule, TableBits, Transform, Weighting};
pub use oracle_top_k::OracleTopK;
pub use oracle_top_p::{MassOf, OracleTopP};
pub use sink::Sink;
pub use twilight::{Candidates, Twilight};
pub use window::Window;
