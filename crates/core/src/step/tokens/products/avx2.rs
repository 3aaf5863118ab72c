//! Dot products by AVX2 intrinsics, for one row at a time: there are too few registers for the sums
//! of several rows.

#[allow(clippy::wildcard_imports, reason = "most names in this file come from there")]
use std::arch::x86_64::*;

use super::{LANES, QueryChunk, ROWS, TILE, prefetch_chunk, widen_chunk};
use crate::step::Element;

/// Sixteen lanes in two registers.
type LowAndHigh = [__m256; 2];

/// Dot products of [`ROWS`] rows with `G` queries, `[TILE][ROWS]`, like
/// [`super::products_of_rows`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn products_of_rows<T: Element, const G: usize>(
    rows: [&[T]; ROWS],
    distances: [usize; ROWS],
    queries: &[QueryChunk<G>],
) -> [[f32; ROWS]; TILE] {
    let mut out = [[0.0; ROWS]; TILE];
    for (place, (row, distance)) in rows.into_iter().zip(distances).enumerate() {
        let mut sums = [[_mm256_setzero_ps(); 2]; TILE];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for (i, (chunk, queries)) in chunks.iter().zip(queries).enumerate() {
            prefetch_chunk(chunk, i, distance);
            add_products(&mut sums, bytemuck::must_cast(widen_chunk(chunk)), queries);
        }
        if !rest.is_empty() {
            let numbers = bytemuck::must_cast(widen_chunk(rest));
            add_products(&mut sums, numbers, &queries[chunks.len()]);
        }
        for (out, product) in out.iter_mut().zip(add_lanes(sums)) {
            out[place] = product;
        }
    }
    out
}

/// Adds the products of a chunk of a row with the chunk of each query.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn add_products<const G: usize>(
    sums: &mut [LowAndHigh; TILE],
    numbers: LowAndHigh,
    queries: &QueryChunk<G>,
) {
    for (sums, query) in sums.iter_mut().zip(queries) {
        let query: LowAndHigh = bytemuck::must_cast(*query);
        for half in 0..2 {
            sums[half] = _mm256_add_ps(sums[half], _mm256_mul_ps(numbers[half], query[half]));
        }
    }
}

/// Sums of the lanes of four vectors, in the order of [`super::add_lanes`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn add_lanes(sums: [LowAndHigh; TILE]) -> [f32; TILE] {
    let mut fours = [_mm_setzero_ps(); TILE];
    for (four, [low, high]) in fours.iter_mut().zip(sums) {
        let eight = _mm256_add_ps(low, high);
        *four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    }
    let [a, b, c, d] = fours;
    let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    let even = _mm_shuffle_ps::<0b10_00_10_00>(ab, cd);
    bytemuck::must_cast(_mm_add_ps(even, _mm_shuffle_ps::<0b11_01_11_01>(ab, cd)))
}
