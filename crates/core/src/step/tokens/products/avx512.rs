//! Dot products by AVX-512 intrinsics, which hold a chunk of a query in a register. Code that the
//! compiler generates from plain Rust is twenty times as slow here.

#[allow(clippy::wildcard_imports, reason = "most names in this file come from there")]
use std::arch::x86_64::*;

use super::{LANES, QueryChunk, ROWS, TILE, prefetch_chunk, widen_chunk};
use crate::step::Element;

/// Dot products of [`ROWS`] rows with `G` queries, `[TILE][ROWS]`, like
/// [`super::products_of_rows`]. A chunk of a query is loaded once for all rows, and the partial
/// sums of all products are added in parallel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(super) fn products_of_rows<T: Element, const G: usize>(
    rows: [&[T]; ROWS],
    distances: [usize; ROWS],
    queries: &[QueryChunk<G>],
) -> [[f32; ROWS]; TILE] {
    let mut sums = [[_mm512_setzero_ps(); TILE]; ROWS];
    let whole = rows[0].len() / LANES;
    let mut chunks: [&[[T; LANES]]; ROWS] = [&[]; ROWS];
    for (chunks, row) in chunks.iter_mut().zip(rows) {
        *chunks = &row.as_chunks::<LANES>().0[..whole];
    }
    for (place, queries) in queries[..whole].iter().enumerate() {
        for ((sums, chunks), distance) in sums.iter_mut().zip(chunks).zip(distances) {
            let chunk = &chunks[place];
            prefetch_chunk(chunk, place, distance);
            add_products(sums, bytemuck::must_cast(widen_chunk(chunk)), queries);
        }
    }
    if let Some(queries) = queries.get(whole) {
        for (sums, row) in sums.iter_mut().zip(rows) {
            add_products(sums, bytemuck::must_cast(widen_chunk(&row[whole * LANES..])), queries);
        }
    }
    let [first, second, third, fourth] = sums;
    bytemuck::must_cast(add_elements([
        add_quarters(first),
        add_quarters(second),
        add_quarters(third),
        add_quarters(fourth),
    ]))
}

/// Adds the products of a chunk of a row with the chunk of each query.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn add_products<const G: usize>(sums: &mut [__m512], numbers: __m512, queries: &QueryChunk<G>) {
    for (sum, query) in sums.iter_mut().zip(queries) {
        *sum = _mm512_add_ps(*sum, _mm512_mul_ps(numbers, bytemuck::must_cast(*query)));
    }
}

/// First half of [`super::add_lanes`] for four vectors: the quarters of vector `i` are added to
/// become quarter `i` of the result.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn add_quarters([a, b, c, d]: [__m512; 4]) -> __m512 {
    let add_halves = |x, y| {
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(x, y);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(x, y))
    };
    let (ab, cd) = (add_halves(a, b), add_halves(c, d));
    let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
    _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd))
}

/// Second half of [`super::add_lanes`] for the quarters of four vectors: the sum of quarter `i` of
/// vector `j` is element `j` of quarter `i` of the result.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn add_elements([a, b, c, d]: [__m512; 4]) -> __m512 {
    let add_halves = |x, y| {
        let low = _mm512_shuffle_ps::<0b01_00_01_00>(x, y);
        _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(x, y))
    };
    let (ab, cd) = (add_halves(a, b), add_halves(c, d));
    let even = _mm512_shuffle_ps::<0b10_00_10_00>(ab, cd);
    _mm512_add_ps(even, _mm512_shuffle_ps::<0b11_01_11_01>(ab, cd))
}
