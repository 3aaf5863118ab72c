//! Weighted sums of values.

use super::blocks::{Pointers, RowBlock};
use super::rounded::RoundedWeights;
use super::rows::{BLOCK_ROWS, KvRows};
use super::{BLOCK_LINES, LANES, SimdLine, TileSums, flat, multiply_lines};
use crate::cpu::simd::{CHUNK, Simd, SimdElement};

/// Values of a block, which are added for the first `N` heads of a tile. With `AHEAD`, later rows
/// are prefetched.
#[derive(Clone, Copy)]
pub(crate) struct BlockValues<'b, E, P, const N: usize, const C: usize, const AHEAD: bool> {
    pub(crate) block: &'b RowBlock<'b, E, P>,
}

impl<E, P, const N: usize, const C: usize, const AHEAD: bool> BlockValues<'_, E, P, N, C, AHEAD>
where
    E: SimdElement,
    P: Pointers<E>,
{
    /// Adds the values of the block with weights `[rows][H]` to the numerators of the tile's heads.
    #[inline(always)]
    pub(crate) unsafe fn add<S: Simd, const H: usize>(
        &self,
        weights: &mut [SimdLine; BLOCK_LINES],
        sums: &mut TileSums,
    ) {
        let to = sums.recent.as_mut_ptr().cast::<f32>();
        if E::SCALED {
            let weights = &mut weights[..self.block.logit_lines::<H, C>()];
            multiply_lines::<S>(weights, &self.block.value_scales::<H>());
            return self.add_integers::<S, H>(&RoundedWeights::new::<H>(weights), to);
        }
        let weights = weights.as_ptr().cast();
        match (H, S::WIDE) {
            (4, true) => self.add_in::<S, H, 2>(weights, to),
            (_, true) => self.add_in::<S, H, 4>(weights, to),
            _ => self.add_in::<S, H, 1>(weights, to),
        }
    }

    /// Adds `M` chunks at a time, and the remaining chunks one by one.
    #[inline(always)]
    unsafe fn add_in<S: Simd, const H: usize, const M: usize>(
        &self,
        weights: *const f32,
        numerator: *mut f32,
    ) {
        let chunks = self.block.value_chunks::<C>();
        let whole = chunks / M * M;
        for chunk in (0..whole).step_by(M) {
            self.add_heads::<S, H, M>(chunk, weights, numerator);
        }
        for chunk in whole..chunks {
            self.add_heads::<S, H, 1>(chunk, weights, numerator);
        }
    }

    /// Adds `M` chunks for all heads in one loop, or for two heads at a time if registers are few.
    #[inline(always)]
    unsafe fn add_heads<S: Simd, const H: usize, const M: usize>(
        &self,
        chunk: usize,
        weights: *const f32,
        numerator: *mut f32,
    ) {
        if S::WIDE || N <= 2 {
            return self.add_chunks::<S, H, M>(chunk, weights, numerator);
        }
        let block = self.block;
        // The first two heads prefetch rows for all heads.
        BlockValues::<E, P, 2, C, AHEAD> { block }.add_chunks::<S, H, M>(chunk, weights, numerator);
        let numerator = numerator.add(2 * self.block.value_chunks::<C>() * CHUNK);
        let weights = weights.add(2);
        if N == 3 {
            BlockValues::<E, P, 1, C, false> { block }
                .add_chunks::<S, H, M>(chunk, weights, numerator);
        } else {
            BlockValues::<E, P, 2, C, false> { block }
                .add_chunks::<S, H, M>(chunk, weights, numerator);
        }
    }

    /// Adds `M` chunks for `N` heads. Sums stay in registers over the block.
    #[inline(always)]
    unsafe fn add_chunks<S: Simd, const H: usize, const M: usize>(
        &self,
        chunk: usize,
        weights: *const f32,
        numerator: *mut f32,
    ) {
        let block = self.block;
        let stride = self.block.value_chunks::<C>() * CHUNK;
        let offset = chunk * CHUNK;
        let mut sums = [[(S::splat(0.0), S::splat(0.0)); M]; N];
        for (head, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                let from = numerator.add(head * stride + offset + c * CHUNK);
                *sum = (S::load(from), S::load(from.add(LANES)));
            }
        }
        for row in 0..block.multiplied_rows::<H, C>() {
            let value = block.value(row);
            for c in 0..M {
                let chunk = offset + c * CHUNK;
                if AHEAD {
                    value.prefetch::<S>(chunk, RowBlock::<E, P>::prefetches_near::<C>());
                }
                let (low, high) = E::widen::<S>(value.here.add(chunk));
                for (head, sums) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*weights.add(row * H + head));
                    sums[c].0 = S::fma(low, weight, sums[c].0);
                    sums[c].1 = S::fma(high, weight, sums[c].1);
                }
            }
        }
        for (head, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                let to = numerator.add(head * stride + offset + c * CHUNK);
                S::store(to, sum.0);
                S::store(to.add(LANES), sum.1);
            }
        }
    }

    /// Adds rows of integers in pairs, sixteen columns at a time for all heads.
    #[inline(always)]
    unsafe fn add_integers<S: Simd, const H: usize>(
        &self,
        weights: &RoundedWeights,
        numerator: *mut f32,
    ) {
        let stride = self.block.value_chunks::<C>() * CHUNK;
        for offset in (0..stride).step_by(CHUNK) {
            self.add_columns::<S, H, AHEAD>(offset, weights, numerator);
            self.add_columns::<S, H, false>(offset + LANES, weights, numerator);
        }
    }

    /// Adds sixteen columns of integers from `offset` on. With `FETCH`, later rows are prefetched.
    #[inline(always)]
    unsafe fn add_columns<S: Simd, const H: usize, const FETCH: bool>(
        &self,
        offset: usize,
        weights: &RoundedWeights,
        numerator: *mut f32,
    ) {
        let block = self.block;
        let stride = self.block.value_chunks::<C>() * CHUNK;
        let mut sums = [S::splat_int(0); N];
        for pair in 0..block.len.div_ceil(2) {
            let (first, second) = (block.value(2 * pair), block.value(2 * pair + 1));
            if FETCH {
                first.prefetch::<S>(offset, true);
                second.prefetch::<S>(offset, true);
            }
            let (a, b) = (first.here.add(offset), second.here.add(offset));
            let values = S::pairs_of_rows(E::integers(a), E::integers(b));
            for (head, sum) in sums.iter_mut().enumerate() {
                let weights = weights.pairs.as_ptr().add(pair * H + head);
                *sum = S::add_pairs(values, S::splat_int(*weights), *sum);
            }
        }
        for (head, sum) in sums.iter().enumerate() {
            let to = numerator.add(head * stride + offset);
            let factor = S::splat(weights.factors[head]);
            S::store(to, S::fma(S::sorted_floats(*sum), factor, S::load(to)));
        }
    }
}

/// Sums of squares below this may have lost terms that underflow in f32.
const LEAST_SQUARE: f32 = 1e-28;

/// Computes the norms of a block's values, which are in the first-level cache.
#[inline(always)]
pub(crate) unsafe fn norm_block<S: Simd, E: SimdElement, P: Pointers<E>>(
    block: &RowBlock<'_, E, P>,
    norms: &mut [f32; BLOCK_ROWS],
) {
    let rows = block.rows;
    for first in (0..block.len).step_by(LANES) {
        let mut squares = [S::no_sums(); LANES];
        for (i, sum) in squares.iter_mut().enumerate().take(block.len - first) {
            let value = block.value(first + i).here;
            for chunk in 0..rows.value_chunks() {
                let (low, high) = E::widen::<S>(value.add(chunk * CHUNK));
                *sum = S::fold(low, low, S::fold(high, high, *sum));
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
    if E::SCALED {
        for (norm, scale) in norms.iter_mut().zip(flat(&mut block.value_scales::<1>())) {
            *norm *= *scale;
        }
    }
}

/// Norm of a value whose square may underflow in f32.
#[inline(always)]
unsafe fn small_norm<S: Simd, E: SimdElement>(rows: &KvRows<'_, E>, value: *const E) -> f32 {
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
