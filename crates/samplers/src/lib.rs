//! Sampling designs, one per file. They draw tokens from the residual: the visible tokens that no
//! selector picked.
//!
//! Linking this crate registers the designs for pipeline files; the `vattention` facade links it.
//! The default design, [`Uniform`], is defined in core.

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
