//! Matrices in Q4_1: blocks of 32 weights `scale · q + least`, with `q` from 0 to 15.
//!
//! A row times such a matrix is computed from the blocks, in f32: a quarter of the bytes of bf16 must
//! be read. (Candle has no vector instructions for this type.)

use half::f16;
use multiversion::multiversion;
use rayon::prelude::*;

/// Weights of a block.
pub(crate) const BLOCK: usize = 32;

/// Half of them: the low half of byte `i` is weight `i`, the high half weight `i + 16`.
const HALF: usize = BLOCK / 2;

/// Bytes of a block in a file: two numbers in f16, and half a byte for each weight.
const STORED: usize = 4 + HALF;

/// Blocks that a thread takes at once. Fewer are not worth waking another.
const PART: usize = 1 << 11;

/// A block with its numbers in f32, so that no time goes into widening them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Block {
    pub(crate) scale: f32,
    pub(crate) least: f32,
    quanta: [u8; HALF],
}

impl Block {
    /// Whole blocks, as they are stored.
    pub(crate) fn read(bytes: &[u8]) -> Vec<Self> {
        let number = |low, high| f16::from_le_bytes([low, high]).to_f32();
        let block = |bytes: &[u8; STORED]| {
            let [a, b, c, d, quanta @ ..] = *bytes;
            Self { scale: number(a, b), least: number(c, d), quanta }
        };
        bytes.as_chunks().0.iter().map(block).collect()
    }

    #[inline(always)]
    fn weights(&self, weights: &mut [f32; BLOCK]) {
        for i in 0..HALF {
            weights[i] = f32::from(self.quanta[i] & 15) * self.scale + self.least;
            weights[HALF + i] = f32::from(self.quanta[i] >> 4) * self.scale + self.least;
        }
    }
}

/// All weights in f32, on all threads.
pub(crate) fn widen(blocks: &[Block], wide: &mut [f32]) {
    let wide = wide.as_chunks_mut::<BLOCK>().0;
    wide.par_chunks_mut(PART).zip(blocks.par_chunks(PART)).for_each(|(wide, blocks)| {
        blocks.iter().zip(wide).for_each(|(block, wide)| block.weights(wide));
    });
}

/// The dot product of `x` with each row of blocks `[y.len(), x.len() / 32]`, on all threads. The
/// result does not depend on how many there are.
pub(crate) fn product(x: &[f32], blocks: &[Block], y: &mut [f32]) {
    let x = x.as_chunks::<BLOCK>().0;
    assert_eq!(blocks.len(), x.len() * y.len());
    let sums: Vec<f32> = x.iter().map(|x| x.iter().sum()).collect();
    let rows = PART.div_ceil(x.len());
    y.par_chunks_mut(rows)
        .zip(blocks.par_chunks(rows * x.len()))
        .for_each(|(y, blocks)| dots(x, &sums, blocks, y));
}

/// `sums` are those of each block of `x`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn dots(x: &[[f32; BLOCK]], sums: &[f32], blocks: &[Block], y: &mut [f32]) {
    for (y, blocks) in y.iter_mut().zip(blocks.chunks_exact(x.len())) {
        let (mut scaled, mut least) = ([0.0_f32; HALF], 0.0);
        for ((x, sum), block) in x.iter().zip(sums).zip(blocks) {
            for i in 0..HALF {
                let (low, high) = (block.quanta[i] & 15, block.quanta[i] >> 4);
                let products = f32::from(low) * x[i] + f32::from(high) * x[HALF + i];
                scaled[i] += block.scale * products;
            }
            least += block.least * sum;
        }
        *y = scaled.iter().sum::<f32>() + least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(count: usize) -> Vec<Block> {
        let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
        let block = |i: usize| Block {
            scale: 0.01 + (i as f32).sin().abs(),
            least: (i as f32 * 0.3).cos(),
            quanta: std::array::from_fn(|j| byte(i * HALF + j)),
        };
        (0..count).map(block).collect()
    }

    #[test]
    fn a_row_times_blocks_is_a_row_times_their_weights() {
        for (inner, outputs) in [(1, 1), (3, 7), (18, 576), (6, 2 * PART)] {
            let blocks = blocks(inner * outputs);
            let x: Vec<f32> = (0..inner * BLOCK).map(|i| (i as f32 * 1.7).sin()).collect();
            let mut wide = vec![0.0; blocks.len() * BLOCK];
            widen(&blocks, &mut wide);
            let mut y = vec![0.0; outputs];
            product(&x, &blocks, &mut y);
            for (row, y) in wide.chunks_exact(x.len()).zip(y) {
                let terms = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let (exact, size) =
                    terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                assert!((f64::from(y) - exact).abs() <= 1e-6 * size, "{inner} {outputs}");
            }
        }
    }
}
