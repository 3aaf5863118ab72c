//! A uniform number for each token of a row.

use crate::step::Stream;

/// Independent uniform numbers, one for each token, keyed by a row's stream: a counter that is mixed twice, with
/// a word of the key before each time, so that any may be asked for in any order, by operations that vectors have.
///
/// The mixing is by Wellons, "Prospecting for hash functions" (2018).
#[derive(Clone, Copy, Debug)]
pub struct Uniforms {
    key: [u32; 2],
}

impl Uniforms {
    /// Those of a row, and not of any other purpose of its stream.
    pub fn new(stream: &Stream) -> Self {
        let [first, second, ..] = stream.block(0);
        Self { key: [first, second] }
    }

    /// A number in 0..2³², for any token.
    #[inline(always)]
    pub fn number(self, token: u32) -> u32 {
        let x = mixed(token.wrapping_mul(0x9E37_79B9) ^ self.key[0]);
        mixed(x ^ self.key[1])
    }
}

#[inline(always)]
fn mixed(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}
