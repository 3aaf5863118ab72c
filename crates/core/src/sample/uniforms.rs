//! A uniform random number for each token of a row.

use crate::step::Stream;

/// Independent uniform numbers, one for each token, keyed by a row's stream.
///
/// A number is computed from the token's index by mixing its bits twice, each time after an XOR
/// with a word of the key. Numbers may be computed in any order, and in vector instructions. The
/// mixing function is from Wellons, "Prospecting for hash functions" (2018).
#[derive(Clone, Copy, Debug)]
pub struct Uniforms {
    key: [u32; 2],
}

impl Uniforms {
    /// Creates the numbers of a row from block 0 of its stream.
    pub fn new(stream: &Stream) -> Self {
        let [first, second, ..] = stream.block(0);
        Self { key: [first, second] }
    }

    /// Number of a token, uniform in 0..2³².
    #[inline(always)]
    pub fn number(self, token: u32) -> u32 {
        let x = mix(token.wrapping_mul(0x9E37_79B9) ^ self.key[0]);
        mix(x ^ self.key[1])
    }
}

#[inline(always)]
fn mix(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}
