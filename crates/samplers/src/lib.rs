//! Sampling designs, one per file: how tokens are drawn from what the selectors leave.
//!
//! Linking this crate makes them known to pipeline files; the `vattention` facade does. The default,
//! [`Uniform`], is core's.

mod lsh;
mod priority;
mod stratified;

pub use lsh::LshSampler;
pub use priority::{LogitIndex, Priority};
pub use stratified::Stratified;
pub use vattention_core::plugin::Uniform;

#[cfg(test)]
mod tests {
    use super::*;
    use vattention_core::Size;

    vattention_testkit::sampler_laws!(uniform, Uniform { base: Size::Tokens(16) });
}
