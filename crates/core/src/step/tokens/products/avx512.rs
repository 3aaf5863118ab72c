//! A part of a query in a register: of plain Rust the compiler makes code twenty times as slow here.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use super::{AHEAD, LANES, Part, ROWS, TILE, add_up, prefetch::prefetch, wide};
use crate::step::Element;

/// The dot products of one row with `G` queries, by the same operations as everywhere.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(super) fn products<T: Element, const G: usize>(row: &[T], queries: &[Part<G>]) -> [f32; G] {
    let mut sums = [_mm512_setzero_ps(); G];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for (chunk, queries) in chunks.iter().zip(queries) {
        add_products(&mut sums, bytemuck::must_cast(wide(chunk)), queries);
    }
    if !rest.is_empty() {
        add_products(&mut sums, bytemuck::must_cast(wide(rest)), &queries[chunks.len()]);
    }
    sums.map(|sums| add_up(bytemuck::must_cast(sums)))
}

/// Multiplies the first of `count` rows, [`ROWS`] at a time, with `G` queries, and returns their
/// number. `store` gets the place of the first row of each block and its products, `[G][ROWS]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(super) fn multiply_rows<'a, T: Element + 'a, const G: usize>(
    row: impl Fn(usize) -> &'a [T],
    count: usize,
    queries: &[Part<G>],
    mut store: impl FnMut(usize, &[[f32; ROWS]]),
) -> usize {
    let whole = count / ROWS * ROWS;
    for place in (0..whole).step_by(ROWS) {
        for ahead in place + AHEAD..(place + AHEAD + ROWS).min(count) {
            prefetch(row(ahead));
        }
        let rows = [row(place), row(place + 1), row(place + 2), row(place + 3)];
        store(place, &products_of_rows(rows, queries)[..G]);
    }
    whole
}

/// The dot products of some rows with `G` queries, `[TILE][ROWS]`, zeros beyond the queries: by the
/// operations of [`products`], but a part of a query is loaded once for all rows, and the sums of
/// all products are added up side by side.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn products_of_rows<T: Element, const G: usize>(
    rows: [&[T]; ROWS],
    queries: &[Part<G>],
) -> [[f32; ROWS]; TILE] {
    let mut sums = [[_mm512_setzero_ps(); TILE]; ROWS];
    let whole = rows[0].len() / LANES;
    let mut chunks: [&[[T; LANES]]; ROWS] = [&[]; ROWS];
    for (chunks, row) in chunks.iter_mut().zip(rows) {
        *chunks = &row.as_chunks::<LANES>().0[..whole];
    }
    for (place, queries) in queries[..whole].iter().enumerate() {
        for (sums, chunks) in sums.iter_mut().zip(chunks) {
            add_products(sums, bytemuck::must_cast(wide(&chunks[place])), queries);
        }
    }
    if let Some(queries) = queries.get(whole) {
        for (sums, row) in sums.iter_mut().zip(rows) {
            add_products(sums, bytemuck::must_cast(wide(&row[whole * LANES..])), queries);
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

/// Adds the products of a part of a row with that of each query.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn add_products<const G: usize>(sums: &mut [__m512], numbers: __m512, queries: &Part<G>) {
    for (sum, query) in sums.iter_mut().zip(queries) {
        *sum = _mm512_add_ps(*sum, _mm512_mul_ps(numbers, bytemuck::must_cast(*query)));
    }
}

/// The first half of [`add_up`] for four vectors: the quarters of each are added up, and become
/// quarter `i` of the result for vector `i`.
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

/// The second half of [`add_up`] for the quarters of four vectors: the sum of quarter `i` of vector
/// `j` is element `j` of quarter `i` of the result.
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
