//! Tiles of query heads, for each of which a kernel runs.

use super::blocks::{Pointers, RowBlock};
use super::rows::is_intel;
use super::{Pass, SimdLine, flat};
use crate::cpu::simd::{Simd, SimdElement, SimdKernel};

/// Computation on one tile of a strip, compiled for the number `N` of its query heads and the
/// number `C` of chunks of a vector (0: any number). With `AHEAD`, it prefetches later rows.
pub(super) trait TileKernel<E, P> {
    unsafe fn run<S: Simd, const N: usize, const C: usize, const AHEAD: bool>(
        &mut self,
        strip: &RowBlock<'_, E, P>,
        tile: usize,
    );
}

/// Runs a kernel on the tiles of `H` query heads each, of which the last may have three of four.
/// The first tile prefetches rows for all tiles.
#[inline(always)]
pub(super) unsafe fn run_on_tiles<S, E, P, K, const H: usize>(
    kernel: &mut K,
    query_heads: usize,
    strip: &RowBlock<'_, E, P>,
) where
    S: Simd,
    E: SimdElement,
    P: Pointers<E>,
    K: TileKernel<E, P>,
{
    for tile in 0..query_heads.div_ceil(H) {
        let three = query_heads == tile * H + 3;
        let on_tile = OnTile { kernel: &mut *kernel, strip, tile };
        // Only groups of four or more heads need several functions.
        if const { H < 4 } {
            on_tile.run::<S, H, true>();
        } else if tile > 0 && S::PREFETCHES {
            if three {
                on_tile.run::<S, 3, false>();
            } else {
                on_tile.run::<S, H, false>();
            }
        } else if three {
            on_tile.run::<S, 3, true>();
        } else {
            on_tile.run::<S, H, true>();
        }
    }
}

/// A kernel, and the rows and the tile that it runs on.
struct OnTile<'k, K, E, P> {
    kernel: &'k mut K,
    strip: &'k RowBlock<'k, E, P>,
    tile: usize,
}

/// A function of its own for each `N`, `C` and `AHEAD`, so that the loops of one do not take
/// registers from those of another.
struct OnTileOf<'k, K, E, P, const N: usize, const C: usize, const AHEAD: bool>(
    OnTile<'k, K, E, P>,
);

impl<E: SimdElement, P: Pointers<E>, K: TileKernel<E, P>> OnTile<'_, K, E, P> {
    /// Runs the kernel. Vectors of 64 and 128 numbers of 16 bits have loops whose length is known
    /// to the compiler; for 128 numbers, this was measured on AMD's processors only.
    #[inline(always)]
    unsafe fn run<S: Simd, const N: usize, const AHEAD: bool>(self) {
        let rows = self.strip.rows;
        let chunks = (rows.key_chunks(), rows.value_chunks());
        if const { S::WIDE && size_of::<E>() == 2 } {
            match chunks {
                (2, 2) => return S::call(OnTileOf::<_, _, _, N, 2, AHEAD>(self)),
                (4, 4) if !is_intel() => return S::call(OnTileOf::<_, _, _, N, 4, AHEAD>(self)),
                _ => {}
            }
        }
        S::call(OnTileOf::<_, _, _, N, 0, AHEAD>(self));
    }
}

impl<K, E, P, const N: usize, const C: usize, const AHEAD: bool> SimdKernel
    for OnTileOf<'_, K, E, P, N, C, AHEAD>
where
    K: TileKernel<E, P>,
{
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let OnTile { kernel, strip, tile } = self.0;
        kernel.run::<S, N, C, AHEAD>(strip, tile);
    }
}

/// Copies the logits of a block for a tile's heads, `[rows][H]`, to the logits of all heads,
/// `[heads][rows]`. A function of its own, so that it takes no registers from the kernels' loops.
#[inline(never)]
pub(super) fn record_logits<E, P, const H: usize>(
    block: &RowBlock<'_, E, P>,
    pass: &Pass<'_, E>,
    tile: usize,
    logits: &mut [SimdLine],
    all: &mut [f32],
) {
    let (fours, rest) = flat(logits).as_chunks::<H>().0[..block.len].as_chunks::<4>();
    let heads = all.chunks_exact_mut(pass.tokens.len()).skip(tile * H);
    for (head, all) in heads.take(H).enumerate() {
        let (all, all_rest) = all[block.first..][..block.len].as_chunks_mut::<4>();
        for (all, four) in all.iter_mut().zip(fours) {
            *all = four.map(|row| row[head]);
        }
        for (logit, row) in all_rest.iter_mut().zip(rest) {
            *logit = row[head];
        }
    }
}
