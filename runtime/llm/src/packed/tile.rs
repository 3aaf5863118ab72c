//! Memory layout of sixteen outputs of a matrix.

use half::f16;

use super::LANES;
use super::format::QuantFormat;

/// Cache line with four bytes of each of sixteen outputs, `[16][4]`.
///
/// In formats of whole bytes, a block of 32 inputs is eight lines of four inputs each. Otherwise it
/// is four lines, whose low halves are inputs `4 i ..` and whose high halves are inputs
/// `16 + 4 i ..`, followed by one line for each bit beyond four, in which input `i` has the bits
/// from `i / 4 · high_bits % 8` on.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct CacheLine(pub(super) [u8; 4 * LANES]);

/// Scales or offsets of sixteen outputs.
pub(super) type LaneNumbers = [f16; LANES];

/// Scales of sixteen outputs as exponents of two in E8M0.
pub(super) type LaneExponents = [u8; LANES];

/// Factors of scales or offsets of sixteen outputs.
pub(super) type LaneFactors = [i8; LANES];

/// Packed weights of sixteen outputs.
#[derive(Clone, Copy)]
pub(super) struct OutputGroup<'a> {
    pub(super) quanta: &'a [CacheLine],
    pub(super) scales: &'a [LaneNumbers],
    pub(super) exponents: &'a [LaneExponents],
    pub(super) offsets: &'a [LaneNumbers],
    pub(super) scale_factors: &'a [LaneFactors],
    pub(super) offset_factors: &'a [LaneFactors],
}

impl OutputGroup<'_> {
    /// Panics if the parts do not match a row of `blocks` blocks.
    pub(super) fn check(&self, format: QuantFormat, blocks: usize) {
        let units = blocks / format.unit_blocks();
        assert!(blocks.is_multiple_of(format.unit_blocks()), "whole units");
        assert_eq!(self.quanta.len(), blocks * format.lines(), "lines");
        assert_eq!(self.scales.len(), units * usize::from(!format.has_exponents()), "scales");
        assert_eq!(self.exponents.len(), units * usize::from(format.has_exponents()), "exponents");
        assert_eq!(self.offsets.len(), units * usize::from(format.has_offsets()), "offsets");
        assert_eq!(self.scale_factors.len(), blocks * format.scale_factors(), "factors");
        let offset_factors = blocks * format.offset_factors();
        assert_eq!(self.offset_factors.len(), offset_factors, "factors of offsets");
    }
}
