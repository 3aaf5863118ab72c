//! A uniform number for each token of a row.

use vattention_core::Stream;

/// Independent uniform numbers, one for each token, keyed by a row's stream: SplitMix64 at the
/// token's place, so that any may be asked for in any order.
///
/// Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators".
#[derive(Clone, Copy, Debug)]
pub(super) struct Uniforms {
    start: u64,
}

impl Uniforms {
    pub(super) fn new(stream: &Stream) -> Self {
        let [high, low, ..] = stream.block(0);
        Self { start: u64::from(high) << 32 | u64::from(low) }
    }

    /// A number in [0, 1), a multiple of 2⁻⁵³.
    pub(super) fn at(self, token: usize) -> f64 {
        let mut x = self.start.wrapping_add((token as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 31;
        (x >> 11) as f64 / (1_u64 << 53) as f64
    }
}
