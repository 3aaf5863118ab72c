//! Dot products of rows with queries. Each product is the same to the last bit, however many are
//! computed together.
//!
//! Vector instructions come from plain loops in `multiversion` functions where the compiler makes
//! good code of them, and from intrinsics elsewhere. No fused multiply-add is used, so that plain
//! loops compute the same sums on every machine.

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;

use multiversion::multiversion;
use multiversion::target::match_target;

use super::{BlockLayout, Blocks, Element};
use crate::step::prefetch;

/// Number of elements multiplied at a time.
const LANES: usize = 16;

/// Number of queries that are multiplied with a row while it is in registers.
const TILE: usize = 4;

/// Number of rows that are multiplied together if vectors have 16 elements.
#[cfg(target_arch = "x86_64")]
const ROWS: usize = 4;

/// Number of rows by which the prefetched row is ahead of the multiplied row.
const AHEAD: usize = 32;

/// [`LANES`] successive elements of each of `G` queries.
type QueryChunk<const G: usize> = [[f32; LANES]; G];

/// Computes the dot products of a range of rows with queries `[queries · dim]`, into `out`
/// `[queries, range.len()]`. Each equals the result of [`dot`].
///
/// # Panics
/// Panics if `dim` is 0, if the queries are not a multiple of `dim` numbers, or if `out` does not
/// have the expected size.
pub(super) fn dots<T: Element>(
    layout: &BlockLayout,
    rows: Blocks<'_, T>,
    range: &Range<usize>,
    queries: &[f32],
    out: &mut [f32],
) {
    let count = queries.len() / layout.dim;
    assert_eq!(queries.len(), count * layout.dim, "whole queries");
    assert_eq!(out.len(), count * range.len(), "a product of each query and row");
    if range.is_empty() {
        return;
    }
    let tiles = queries.chunks(TILE * layout.dim).zip(out.chunks_mut(TILE * range.len()));
    for (queries, out) in tiles {
        match queries.len() / layout.dim {
            4 => multiply_tile(
                layout,
                rows,
                range,
                &split_into_chunks::<4>(queries, layout.dim),
                out,
            ),
            3 => multiply_tile(
                layout,
                rows,
                range,
                &split_into_chunks::<3>(queries, layout.dim),
                out,
            ),
            2 => multiply_tile(
                layout,
                rows,
                range,
                &split_into_chunks::<2>(queries, layout.dim),
                out,
            ),
            _ => multiply_tile(
                layout,
                rows,
                range,
                &split_into_chunks::<1>(queries, layout.dim),
                out,
            ),
        }
    }
}

/// Splits queries `[G · dim]` into chunks; the last chunk is filled with zeros.
fn split_into_chunks<const G: usize>(queries: &[f32], dim: usize) -> Vec<QueryChunk<G>> {
    let mut chunks = vec![[[0.0; LANES]; G]; dim.div_ceil(LANES)];
    for (g, query) in queries.chunks_exact(dim).enumerate() {
        for (chunk, numbers) in chunks.iter_mut().zip(query.chunks(LANES)) {
            chunk[g][..numbers.len()].copy_from_slice(numbers);
        }
    }
    chunks
}

/// Rows that follow each other in a block.
#[derive(Clone, Copy)]
struct SuccessiveRows<'a, T> {
    /// Elements of the block from the first row on.
    block: &'a [T],
    /// Elements of the next block, whose first rows are read next; empty after the last row.
    next: &'a [T],
    /// Number of elements from row to row.
    stride: usize,
    /// Number of elements of a row.
    dim: usize,
    /// Number of rows.
    count: usize,
}

/// Computes the dot products of a range of rows with `G` queries, into `out` `[G, range.len()]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c", "x86_64+avx2+f16c"))]
#[allow(unsafe_code, unused_unsafe, reason = "safe only in AVX-512's own version")]
fn multiply_tile<T: Element, const G: usize>(
    layout: &BlockLayout,
    rows: Blocks<'_, T>,
    range: &Range<usize>,
    queries: &[QueryChunk<G>],
    out: &mut [f32],
) {
    let (dim, stride) = (layout.dim, layout.stride);
    let mut done = 0;
    while done < range.len() {
        let (block, left) = layout.rest_of_block(rows, range.start + done);
        let count = left.min(range.len() - done);
        match_target! {
            "x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c" => {
                let next = range.start + done + count;
                let next = if next < range.end { layout.rest_of_block(rows, next).0 } else { &[] };
                let successive = SuccessiveRows { block, next, stride, dim, count };
                // SAFETY: This arm is compiled only where all these instructions are enabled: by
                // this version of the function, or for the whole build.
                unsafe { avx512::multiply_rows(&successive, queries, out, (done, range.len())) }
            }
            _ => {
                let row = |place: usize| &block[place * stride..][..dim];
                for place in 0..count {
                    if place + AHEAD < count {
                        prefetch(row(place + AHEAD));
                    }
                    for (g, product) in products(row(place), queries).into_iter().enumerate() {
                        out[g * range.len() + done + place] = product;
                    }
                }
            }
        }
        done += count;
    }
}

/// Computes the dot products of some rows with a query, into `out` `[tokens]`. Each equals the
/// result of [`dot`].
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c", "x86_64+avx2+f16c"))]
#[allow(unsafe_code, unused_unsafe, reason = "safe only in AVX-512's own version")]
pub(super) fn dots_of<T: Element>(
    layout: &BlockLayout,
    rows: Blocks<'_, T>,
    tokens: &[usize],
    query: &[f32],
    out: &mut [f32],
) {
    assert_eq!(tokens.len(), out.len(), "a product of each row");
    let query = split_into_chunks::<1>(query, layout.dim);
    match_target! {
        "x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c" => {
            // SAFETY: As above.
            unsafe { avx512::multiply_listed(layout, rows, tokens, &query, out) }
        }
        _ => {
            for (place, out) in out.iter_mut().enumerate() {
                if let Some(&ahead) = tokens.get(place + AHEAD) {
                    prefetch(layout.row(rows, ahead));
                }
                [*out] = products(layout.row(rows, tokens[place]), &query);
            }
        }
    }
}

/// Dot products of one row with `G` queries.
#[inline(always)]
#[allow(dead_code, reason = "a build for AVX-512 alone never calls it")]
fn products<T: Element, const G: usize>(row: &[T], queries: &[QueryChunk<G>]) -> [f32; G] {
    let mut sums = [[0.0; LANES]; G];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for (chunk, queries) in chunks.iter().zip(queries) {
        add_products(&mut sums, &widen_chunk(chunk), queries);
    }
    // Outside the loop, so that the sums of whole chunks stay in registers.
    if !rest.is_empty() {
        add_products(&mut sums, &widen_chunk(rest), &queries[chunks.len()]);
    }
    sums.map(add_lanes)
}

/// Converts up to [`LANES`] elements to f32 and appends zeros. This is a loop, because `map` of an
/// array is not always inlined.
#[inline(always)]
fn widen_chunk<T: Element>(row: &[T]) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    for (number, x) in numbers.iter_mut().zip(row) {
        *number = x.wide();
    }
    numbers
}

/// Adds the products of a chunk of a row with the chunk of each query.
#[inline(always)]
#[allow(dead_code, reason = "a build for AVX-512 alone never calls it")]
fn add_products<const G: usize>(
    sums: &mut QueryChunk<G>,
    numbers: &[f32; LANES],
    queries: &QueryChunk<G>,
) {
    for (sums, query) in sums.iter_mut().zip(queries) {
        for ((sum, x), q) in sums.iter_mut().zip(numbers).zip(query) {
            *sum += x * q;
        }
    }
}

/// Dot product of one row with a query, in [`LANES`] partial sums, which are added in a fixed
/// order.
#[inline(always)]
pub(super) fn dot<T: Element>(row: &[T], query: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    let (query_chunks, query_rest) = query.as_chunks::<LANES>();
    for (chunk, q) in chunks.iter().zip(query_chunks) {
        for ((sum, x), q) in sums.iter_mut().zip(chunk).zip(q) {
            *sum += x.wide() * q;
        }
    }
    if !rest.is_empty() {
        for ((sum, x), q) in sums.iter_mut().zip(rest).zip(query_rest) {
            *sum += x.wide() * q;
        }
    }
    add_lanes(sums)
}

/// Adds the partial sums of a dot product, in the order in which AVX-512 adds quarters of vectors.
#[inline(always)]
fn add_lanes(sums: [f32; LANES]) -> f32 {
    let eight: [f32; LANES / 2] = std::array::from_fn(|i| sums[i] + sums[i + 8]);
    let four: [f32; LANES / 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}
