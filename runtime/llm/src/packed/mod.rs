//! Quantised matrices, packed for products by integer instructions.
//!
//! GGUF stores weights in blocks of 32, as `scale · q + offset` with a small integer `q`. A product
//! with such a matrix multiplies integers: each activation is a sum of three signed bytes
//! ([`Activations`]), which is as exact as f32, and the dot product of a block is a sum of 32-bit
//! integers. Only one addition per block is in f32. Its order does not depend on the machine, so
//! every machine computes the same bits. In some formats `q` is the number of an integer in a table
//! of sixteen, a codebook, in which the products look it up.
//!
//! The weights of sixteen outputs are interleaved, so no sum runs across a register. candle's
//! products are not used, because they round activations to 8 bits, which changes the answers of
//! small models.

mod activations;
mod codebook;
mod format;
mod kernel;
mod layout;
mod tile;

pub(crate) use activations::Activations;
pub(crate) use codebook::LARGEST_EXPONENT;
pub(crate) use format::QuantFormat;
pub(crate) use layout::{PackedMatrix, PackedPart};

/// Number of weights in a block.
pub(crate) const BLOCK: usize = 32;

/// Number of interleaved outputs.
const LANES: usize = 16;

#[cfg(test)]
mod tests;
