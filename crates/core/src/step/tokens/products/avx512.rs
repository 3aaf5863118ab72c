//! Dot products by AVX-512 intrinsics, which hold a chunk of a query in a register. Code that the
//! compiler generates from plain Rust is twenty times as slow here.

#[allow(clippy::wildcard_imports, reason = "most names in this file come from there")]
use std::arch::x86_64::*;

use super::{
    AHEAD, BlockLayout, Blocks, LANES, QueryChunk, ROWS, SuccessiveRows, TILE, widen_chunk,
};
use crate::step::{Element, prefetch::LINE, prefetch_after};

/// Multiplies rows, [`ROWS`] at a time, with `G` queries. Writes the products to `out`
/// `[G][length]` from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(super) fn multiply_rows<T: Element, const G: usize>(
    rows: &SuccessiveRows<'_, T>,
    queries: &[QueryChunk<G>],
    out: &mut [f32],
    (first, length): (usize, usize),
) {
    let SuccessiveRows { block, next, stride, dim, count } = *rows;
    let mut offsets = [0, 1, 2, 3].map(|row: usize| row * stride);
    for place in (0..count).step_by(ROWS) {
        let (here, left) = (&block[place * stride..], count - place);
        if left < ROWS {
            // The last row fills an incomplete group.
            offsets[left..].fill((left - 1) * stride);
        }
        let mut four: [&[T]; ROWS] = [&[]; ROWS];
        for (four, offset) in four.iter_mut().zip(offsets) {
            *four = &here[offset..][..dim];
        }
        let ahead = match (place + AHEAD).checked_sub(count) {
            None => &here[AHEAD * stride..],
            Some(place) => next.get(place * stride..).unwrap_or(here),
        };
        let distance = ahead.as_ptr().addr().wrapping_sub(here.as_ptr().addr());
        let products = products_of_rows(four, [distance; ROWS], queries);
        for (g, products) in products.iter().enumerate().take(G) {
            store(products, &mut out[g * length..][first + place..first + count]);
        }
    }
}

/// Multiplies listed rows, [`ROWS`] at a time, with a query. Writes the products to `out`
/// `[tokens]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(super) fn multiply_listed<T: Element>(
    layout: &BlockLayout,
    rows: Blocks<'_, T>,
    tokens: &[usize],
    query: &[QueryChunk<1>],
    out: &mut [f32],
) {
    for place in (0..tokens.len()).step_by(ROWS) {
        let mut four: [&[T]; ROWS] = [&[]; ROWS];
        let mut distances = [0; ROWS];
        for (row, (four, distance)) in four.iter_mut().zip(&mut distances).enumerate() {
            let token = place + row.min(tokens.len() - 1 - place);
            *four = layout.row(rows, tokens[token]);
            if let Some(&ahead) = tokens.get(token + AHEAD) {
                let ahead = layout.row(rows, ahead).as_ptr().addr();
                *distance = ahead.wrapping_sub(four.as_ptr().addr());
            }
        }
        let [products, ..] = products_of_rows(four, distances, query);
        store(&products, &mut out[place..]);
    }
}

/// Writes the products of up to [`ROWS`] rows to the beginning of `out`.
#[inline(always)]
fn store(products: &[f32; ROWS], out: &mut [f32]) {
    match out.first_chunk_mut() {
        Some(out) => *out = *products,
        None => out.copy_from_slice(&products[..out.len()]),
    }
}

/// Dot products of [`ROWS`] rows with `G` queries, `[TILE][ROWS]`, with zeros beyond the queries.
/// The operations are those of [`super::products`], but a chunk of a query is loaded once for all
/// rows, and the partial sums of all products are added in parallel. For each row, the row
/// `distances` bytes after it is prefetched, a line at a time: many requests at once would wait for
/// each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn products_of_rows<T: Element, const G: usize>(
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
    let chunks_per_line = (LINE / size_of::<[T; LANES]>()).max(1);
    for (place, queries) in queries[..whole].iter().enumerate() {
        for ((sums, chunks), distance) in sums.iter_mut().zip(chunks).zip(distances) {
            let chunk = &chunks[place];
            if place % chunks_per_line == 0 {
                prefetch_after(chunk, distance);
            }
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
