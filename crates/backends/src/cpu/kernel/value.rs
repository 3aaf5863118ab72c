//! Values: weights times rows.

use super::rows::{BLOCK_ROWS, Block, prefetch};
use super::{LANES, TileSums};
use crate::cache::Chunks;
use crate::cpu::simd::{CHUNK, Element, Simd};

/// Adds the values of a block, weighted `[rows][H]`, to the numerators.
#[inline(always)]
pub(crate) unsafe fn add_values<S: Simd, E: Element, const H: usize>(
    rows: &Chunks<'_, E>,
    block: &Block<E>,
    next: &Block<E>,
    ahead: usize,
    weights: *const f32,
    sums: &mut TileSums,
) {
    let chunks = rows.value_chunks();
    let numerator = sums.numerator.as_mut_ptr().cast::<f32>();
    let mut chunk = 0;
    macro_rules! add {
        ($heads:literal, $chunks:literal) => {
            while chunk + $chunks <= chunks {
                for head in (0..H).step_by($heads) {
                    let ahead = if head == 0 { ahead } else { 0 };
                    let to = numerator.add((head * chunks + chunk) * CHUNK);
                    add_chunks::<S, E, H, $heads, $chunks>(
                        rows,
                        block,
                        next,
                        ahead,
                        chunk,
                        weights.add(head),
                        to,
                    );
                }
                chunk += $chunks;
            }
        };
    }
    match (H, S::WIDE) {
        (4, true) => {
            add!(4, 2);
            add!(4, 1);
        }
        (2, true) => {
            add!(2, 4);
            add!(2, 1);
        }
        (_, true) => {
            add!(1, 4);
            add!(1, 1);
        }
        (1, false) => add!(1, 1),
        _ => add!(2, 1),
    }
}

/// `C` chunks of the values for `N` of the `H` heads: sums stay in registers over the block.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn add_chunks<S: Simd, E: Element, const H: usize, const N: usize, const C: usize>(
    rows: &Chunks<'_, E>,
    block: &Block<E>,
    next: &Block<E>,
    ahead: usize,
    chunk: usize,
    weights: *const f32,
    numerator: *mut f32,
) {
    let stride = rows.value_chunks() * CHUNK;
    let offset = rows.value_offset + chunk * CHUNK;
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
                prefetch::<S, E>(next.keys[row].add(offset + c * CHUNK));
            }
        }
        let value = block.keys[row].add(offset);
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

/// The lengths of the values of a block, which the first-level cache holds.
#[inline(always)]
pub(crate) unsafe fn norm_block<S: Simd, E: Element>(
    rows: &Chunks<'_, E>,
    block: &Block<E>,
    norms: &mut [f32; BLOCK_ROWS],
) {
    for first in (0..block.len).step_by(LANES) {
        let mut squares = [S::splat(0.0); LANES];
        for (i, sum) in squares.iter_mut().enumerate().take(block.len - first) {
            let value = block.keys[first + i].add(rows.value_offset);
            for chunk in 0..rows.value_chunks() {
                let (low, high) = E::widen::<S>(value.add(chunk * CHUNK));
                *sum = S::fma(low, low, S::fma(high, high, *sum));
            }
        }
        S::store(norms.as_mut_ptr().add(first), S::sums(&squares));
    }
    norms[..block.len].iter_mut().for_each(|norm| *norm = norm.sqrt());
}
