//! Matrices in blocks of 32 weights, `scale · q + least`, as GGUF stores them in Q4_1 and Q8_0.
//!
//! A row times such a matrix is computed from the blocks, in f32. Candle's product rounds the row to 8
//! bits, which changes answers of small models, and has no vector instructions for Q4_1.

use half::f16;
use multiversion::multiversion;
use rayon::prelude::*;

/// Weights of a block.
pub(crate) const BLOCK: usize = 32;

const HALF: usize = BLOCK / 2;

/// Blocks that a thread takes at once. Fewer are not worth waking another.
const PART: usize = 1 << 11;

/// The numbers of a block in f32, so that no time goes into widening them, and its weights.
pub(crate) trait QuantBlock: Copy + Sync {
    /// From a file's bytes, which are whole blocks.
    fn read(bytes: &[u8]) -> Vec<Self>;
    fn scale(&self) -> f32;
    /// What is added to every weight.
    fn least(&self) -> f32;
    /// Weight `i` before it is scaled.
    fn quantum(&self, i: usize) -> f32;
}

/// Of half a byte each: the low half of byte `i` is weight `i`, the high half weight `i + 16`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Q4_1 {
    scale: f32,
    least: f32,
    quanta: [u8; HALF],
}

/// Of a byte each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Q8_0 {
    scale: f32,
    quanta: [i8; BLOCK],
}

fn number(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

impl QuantBlock for Q4_1 {
    fn read(bytes: &[u8]) -> Vec<Self> {
        let block = |&[a, b, c, d, ref quanta @ ..]: &[u8; 4 + HALF]| Self {
            scale: number(a, b),
            least: number(c, d),
            quanta: *quanta,
        };
        bytes.as_chunks().0.iter().map(block).collect()
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        self.scale
    }

    #[inline(always)]
    fn least(&self) -> f32 {
        self.least
    }

    #[inline(always)]
    fn quantum(&self, i: usize) -> f32 {
        let byte = self.quanta[i % HALF];
        f32::from(if i < HALF { byte & 15 } else { byte >> 4 })
    }
}

impl QuantBlock for Q8_0 {
    fn read(bytes: &[u8]) -> Vec<Self> {
        let block = |&[a, b, ref quanta @ ..]: &[u8; 2 + BLOCK]| Self {
            scale: number(a, b),
            quanta: quanta.map(|byte| byte as i8),
        };
        bytes.as_chunks().0.iter().map(block).collect()
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        self.scale
    }

    #[inline(always)]
    fn least(&self) -> f32 {
        0.0
    }

    #[inline(always)]
    fn quantum(&self, i: usize) -> f32 {
        f32::from(self.quanta[i])
    }
}

/// All weights in f32, on all threads.
pub(crate) fn widen<B: QuantBlock>(blocks: &[B], wide: &mut [f32]) {
    let wide = wide.as_chunks_mut::<BLOCK>().0;
    wide.par_chunks_mut(PART).zip(blocks.par_chunks(PART)).for_each(|(wide, blocks)| {
        widen_part(blocks, wide);
    });
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn widen_part<B: QuantBlock>(blocks: &[B], wide: &mut [[f32; BLOCK]]) {
    for (block, wide) in blocks.iter().zip(wide) {
        for (i, wide) in wide.iter_mut().enumerate() {
            *wide = block.quantum(i) * block.scale() + block.least();
        }
    }
}

/// The dot product of `x` with each row of blocks `[y.len(), x.len() / 32]`, on all threads. The
/// result does not depend on how many there are.
pub(crate) fn product<B: QuantBlock>(x: &[f32], blocks: &[B], y: &mut [f32]) {
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
fn dots<B: QuantBlock>(x: &[[f32; BLOCK]], sums: &[f32], blocks: &[B], y: &mut [f32]) {
    for (y, blocks) in y.iter_mut().zip(blocks.chunks_exact(x.len())) {
        let (mut scaled, mut least) = ([0.0_f32; HALF], 0.0);
        for ((x, sum), block) in x.iter().zip(sums).zip(blocks) {
            for i in 0..HALF {
                let products = block.quantum(i) * x[i] + block.quantum(HALF + i) * x[HALF + i];
                scaled[i] += block.scale() * products;
            }
            least += block.least() * sum;
        }
        *y = scaled.iter().sum::<f32>() + least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn four_bits(count: usize) -> Vec<Q4_1> {
        let quanta = bytes(count * HALF);
        let block = |i: usize| Q4_1 {
            scale: 0.01 + (i as f32).sin().abs(),
            least: (i as f32 * 0.3).cos(),
            quanta: std::array::from_fn(|j| quanta[i * HALF + j]),
        };
        (0..count).map(block).collect()
    }

    fn eight_bits(count: usize) -> Vec<Q8_0> {
        let quanta = bytes(count * BLOCK);
        let block = |i: usize| Q8_0 {
            scale: 0.01 + (i as f32).sin().abs(),
            quanta: std::array::from_fn(|j| quanta[i * BLOCK + j] as i8),
        };
        (0..count).map(block).collect()
    }

    fn check<B: QuantBlock>(blocks: &[B], outputs: usize) {
        let mut wide = vec![0.0; blocks.len() * BLOCK];
        let x: Vec<f32> = (0..wide.len() / outputs).map(|i| (i as f32 * 1.7).sin()).collect();
        widen(blocks, &mut wide);
        let mut y = vec![0.0; outputs];
        product(&x, blocks, &mut y);
        for (row, y) in wide.chunks_exact(x.len()).zip(y) {
            let terms = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
            // Products are of weights before `least` is added, which may be larger.
            assert!((f64::from(y) - exact).abs() <= 1e-5 * size, "{outputs}");
        }
    }

    #[test]
    fn a_row_times_blocks_is_a_row_times_their_weights() {
        for (inner, outputs) in [(1, 1), (3, 7), (18, 576), (6, 2 * PART)] {
            check(&four_bits(inner * outputs), outputs);
            check(&eight_bits(inner * outputs), outputs);
        }
    }
}
