//! Weights of a block's rows as 16-bit integers, in pairs of rows.

use super::rows::BLOCK_ROWS;
use super::{BLOCK_LINES, LANES, LEAST_PEAK, SimdLine, TO_LOW_BITS};

/// Weights relative to the largest of their head in the block. The error of a weight is at most
/// 2⁻¹⁶ of the largest.
pub(crate) struct RoundedWeights {
    /// Weights of rows `2 i` (low half) and `2 i + 1` (high half), `[rows / 2][H]`.
    pub(crate) pairs: [i32; BLOCK_LINES * LANES / 2],
    /// Value of an integer of 1, `[H]`.
    pub(crate) factors: [f32; 4],
}

/// Integer of the largest weight.
const LARGEST: f32 = i16::MAX as f32;

// Products of a block's rows, whose values are at most 128, are added in 32 bits.
const _: () = assert!(BLOCK_ROWS * 128 * (i16::MAX as usize) < i32::MAX as usize);

impl RoundedWeights {
    /// Rounds weights `[rows][H]`, which are not negative, for an even number of rows.
    #[inline(always)]
    pub(crate) fn new<const H: usize>(weights: &[SimdLine]) -> Self {
        let mut peaks = [LEAST_PEAK; LANES];
        for line in weights {
            for (peak, weight) in peaks.iter_mut().zip(&line.0) {
                *peak = if *weight > *peak { *weight } else { *peak };
            }
        }
        let mut factors = [LEAST_PEAK / LARGEST; 4];
        for (lane, peak) in peaks.iter().enumerate() {
            factors[lane % H] = factors[lane % H].max(peak / LARGEST);
        }
        let mut inverses = [0.0; LANES];
        for (lane, inverse) in inverses.iter_mut().enumerate() {
            *inverse = 1.0 / factors[lane % H];
        }
        let mut pairs = [0; BLOCK_LINES * LANES / 2];
        for (line, pairs) in weights.iter().zip(pairs.as_chunks_mut::<{ LANES / 2 }>().0) {
            let mut integers = [0; LANES];
            for (lane, integer) in integers.iter_mut().enumerate() {
                *integer = (line.0[lane] * inverses[lane] + TO_LOW_BITS).to_bits() & 0xffff;
            }
            for (i, pair) in pairs.iter_mut().enumerate() {
                let lane = i / H * 2 * H + i % H;
                *pair = (integers[lane] | integers[lane + H] << 16).cast_signed();
            }
        }
        Self { pairs, factors }
    }
}
