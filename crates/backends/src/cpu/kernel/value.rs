//! Values: weights times rows.

use super::rows::{BLOCK_ROWS, Block, Rows};
use super::{LANES, TileSums};
use crate::cpu::simd::{CHUNK, Element, Simd};

/// Values to add with weights `[rows][H]`, of which the first `N` of a row are in use. With `AHEAD`,
/// the rows ahead are requested meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Values<'b, 'w, 'a, E, const N: usize, const AHEAD: bool> {
    pub(crate) block: &'b Block<'w, 'a, E>,
    pub(crate) weights: *const f32,
}

impl<E: Element, const N: usize, const AHEAD: bool> Values<'_, '_, '_, E, N, AHEAD> {
    /// Adds the values of a block, weighted, to the numerators of the tile's heads.
    #[inline(always)]
    pub(crate) unsafe fn add<S: Simd, const H: usize>(&self, sums: &mut TileSums) {
        let to = sums.numerator.as_mut_ptr().cast::<f32>();
        match (H, S::WIDE) {
            (4, true) => self.add_in::<S, H, 2>(to),
            (_, true) => self.add_in::<S, H, 4>(to),
            _ => self.add_in::<S, H, 1>(to),
        }
    }

    /// Adds `C` chunks at a time, then the rest one by one.
    #[inline(always)]
    unsafe fn add_in<S: Simd, const H: usize, const C: usize>(&self, numerator: *mut f32) {
        let chunks = self.block.rows().value_chunks();
        let whole = chunks / C * C;
        for chunk in (0..whole).step_by(C) {
            self.add_heads::<S, H, C>(chunk, numerator);
        }
        for chunk in whole..chunks {
            self.add_heads::<S, H, 1>(chunk, numerator);
        }
    }

    /// Adds `C` chunks for all heads: in one loop, or for two heads at a time where registers are
    /// few.
    #[inline(always)]
    unsafe fn add_heads<S: Simd, const H: usize, const C: usize>(
        &self,
        chunk: usize,
        numerator: *mut f32,
    ) {
        if S::WIDE || N <= 2 {
            return self.add_chunks::<S, H, C>(chunk, numerator);
        }
        let stride = self.block.rows().value_chunks() * CHUNK;
        let Self { block, weights } = *self;
        // The first heads request rows for all.
        Values::<E, 2, AHEAD> { block, weights }.add_chunks::<S, H, C>(chunk, numerator);
        let (weights, numerator) = (weights.add(2), numerator.add(2 * stride));
        if N == 3 {
            Values::<E, 1, false> { block, weights }.add_chunks::<S, H, C>(chunk, numerator);
        } else {
            Values::<E, 2, false> { block, weights }.add_chunks::<S, H, C>(chunk, numerator);
        }
    }

    /// `C` chunks of the values for `N` heads: sums stay in registers over the block.
    #[inline(always)]
    unsafe fn add_chunks<S: Simd, const H: usize, const C: usize>(
        &self,
        chunk: usize,
        numerator: *mut f32,
    ) {
        let Self { block, weights } = *self;
        let stride = block.rows().value_chunks() * CHUNK;
        let offset = chunk * CHUNK;
        let mut sums = [[(S::splat(0.0), S::splat(0.0)); C]; N];
        for (head, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                let at = numerator.add(head * stride + offset + c * CHUNK);
                *sum = (S::load(at), S::load(at.add(LANES)));
            }
        }
        for row in 0..block.len {
            let value = block.value(row);
            for c in 0..C {
                let at = offset + c * CHUNK;
                if AHEAD {
                    value.prefetch::<S>(at);
                }
                let (low, high) = E::widen::<S>(value.here.add(at));
                for (head, sums) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*weights.add(row * H + head));
                    sums[c].0 = S::fma(low, weight, sums[c].0);
                    sums[c].1 = S::fma(high, weight, sums[c].1);
                }
            }
        }
        for (head, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                let at = numerator.add(head * stride + offset + c * CHUNK);
                S::store(at, sum.0);
                S::store(at.add(LANES), sum.1);
            }
        }
    }
}

/// Sums of squares below this may have lost some of their terms in f32.
const LEAST_SQUARE: f32 = 1e-28;

/// The lengths of the values of a block, which the first-level cache holds.
#[inline(always)]
pub(crate) unsafe fn norm_block<S: Simd, E: Element>(
    block: &Block<'_, '_, E>,
    norms: &mut [f32; BLOCK_ROWS],
) {
    let rows = block.rows();
    for first in (0..block.len).step_by(LANES) {
        let mut squares = [S::splat(0.0); LANES];
        for (i, sum) in squares.iter_mut().enumerate().take(block.len - first) {
            let value = block.value(first + i).here;
            for chunk in 0..rows.value_chunks() {
                let (low, high) = E::widen::<S>(value.add(chunk * CHUNK));
                *sum = S::fma(low, low, S::fma(high, high, *sum));
            }
        }
        S::store(norms.as_mut_ptr().add(first), S::sums(&squares));
    }
    for (i, norm) in norms[..block.len].iter_mut().enumerate() {
        *norm = if *norm >= LEAST_SQUARE {
            norm.sqrt()
        } else {
            small_norm::<S, E>(rows, block.value(i).here)
        };
    }
}

/// The length of a value whose square f32 hardly holds.
#[inline(always)]
unsafe fn small_norm<S: Simd, E: Element>(rows: &Rows<'_, E>, value: *const E) -> f32 {
    let mut squares = 0.0;
    for chunk in 0..rows.value_chunks() {
        let (low, high) = E::widen::<S>(value.add(chunk * CHUNK));
        let mut numbers = [0.0; CHUNK];
        S::store(numbers.as_mut_ptr(), low);
        S::store(numbers.as_mut_ptr().add(LANES), high);
        squares += numbers.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
    }
    squares.sqrt() as f32
}
