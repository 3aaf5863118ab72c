//! Values: weights times rows.

use super::rows::{BLOCK_ROWS, Block, Rows, prefetch};
use super::{LANES, TileSums};
use crate::cpu::simd::{CHUNK, Element, Simd};

/// Values to add, and to what.
#[derive(Clone, Copy)]
pub(crate) struct Values<'a, E> {
    pub(crate) rows: &'a Rows<'a, E>,
    pub(crate) block: &'a Block<E>,
    /// The rows to fetch meanwhile, the first `ahead` of them.
    pub(crate) next: &'a Block<E>,
    pub(crate) ahead: usize,
    /// `[rows][H]`.
    pub(crate) weights: *const f32,
}

impl<E: Element> Values<'_, E> {
    /// Adds the values of a block, weighted, to the numerators of `H` heads.
    #[inline(always)]
    pub(crate) unsafe fn add<S: Simd, const H: usize>(&self, sums: &mut TileSums) {
        let to = sums.numerator.as_mut_ptr().cast::<f32>();
        match (H, S::WIDE) {
            (4, true) => self.add_in::<S, H, 4, 2>(to),
            (2, true) => self.add_in::<S, H, 2, 4>(to),
            (_, true) => self.add_in::<S, H, 1, 4>(to),
            (1, false) => self.add_in::<S, H, 1, 1>(to),
            _ => self.add_in::<S, H, 2, 1>(to),
        }
    }

    /// Adds `C` chunks at a time for `N` of the `H` heads, then what is left of the chunks.
    #[inline(always)]
    unsafe fn add_in<S: Simd, const H: usize, const N: usize, const C: usize>(
        &self,
        numerator: *mut f32,
    ) {
        let chunks = self.rows.value_chunks();
        let whole = chunks / C * C;
        for chunk in (0..whole).step_by(C) {
            self.add_heads::<S, H, N, C>(chunk, numerator);
        }
        for chunk in whole..chunks {
            self.add_heads::<S, H, N, 1>(chunk, numerator);
        }
    }

    #[inline(always)]
    unsafe fn add_heads<S: Simd, const H: usize, const N: usize, const C: usize>(
        &self,
        chunk: usize,
        numerator: *mut f32,
    ) {
        for head in (0..H).step_by(N) {
            // The first heads fetch for all.
            let ahead = if head == 0 { self.ahead } else { 0 };
            let weights = self.weights.add(head);
            let to = numerator.add((head * self.rows.value_chunks() + chunk) * CHUNK);
            Self { ahead, weights, ..*self }.add_chunks::<S, H, N, C>(chunk, to);
        }
    }

    /// `C` chunks of the values for `N` of the `H` heads: sums stay in registers over the block.
    #[inline(always)]
    unsafe fn add_chunks<S: Simd, const H: usize, const N: usize, const C: usize>(
        &self,
        chunk: usize,
        numerator: *mut f32,
    ) {
        let Self { rows, block, next, ahead, weights } = *self;
        let stride = rows.value_chunks() * CHUNK;
        let offset = chunk * CHUNK;
        let mut sums = [[(S::splat(0.0), S::splat(0.0)); C]; N];
        for (head, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                let at = numerator.add(head * stride + c * CHUNK);
                *sum = (S::load(at), S::load(at.add(LANES)));
            }
        }
        for row in 0..block.len {
            if row < ahead {
                for c in 0..C {
                    prefetch::<S, E>(next.values[row].add(offset + c * CHUNK));
                }
            }
            let value = block.values[row].add(offset);
            for c in 0..C {
                let (low, high) = E::widen::<S>(value.add(c * CHUNK));
                for (head, sums) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*weights.add(row * H + head));
                    sums[c].0 = S::fma(low, weight, sums[c].0);
                    sums[c].1 = S::fma(high, weight, sums[c].1);
                }
            }
        }
        for (head, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                let at = numerator.add(head * stride + c * CHUNK);
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
    rows: &Rows<'_, E>,
    block: &Block<E>,
    norms: &mut [f32; BLOCK_ROWS],
) {
    for first in (0..block.len).step_by(LANES) {
        let mut squares = [S::splat(0.0); LANES];
        for (i, sum) in squares.iter_mut().enumerate().take(block.len - first) {
            let value = block.values[first + i];
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
            small_norm::<S, E>(rows, block.values[i])
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
