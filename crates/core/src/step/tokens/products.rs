//! Dot products of rows with queries. Each product is the same to the last bit, however many are
//! computed together.
//!
//! Vector instructions come from plain loops in `multiversion` functions where the compiler makes
//! good code of them, and from intrinsics elsewhere. No fused multiply-add is used, so that plain
//! loops compute the same sums on every machine.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;

use multiversion::multiversion;
use multiversion::target::match_target;

use super::{BlockLayout, Blocks, Element};
#[cfg(target_arch = "x86_64")]
use crate::step::{prefetch::LINE, prefetch_after};

/// Number of elements multiplied at a time.
const LANES: usize = 16;

/// Number of queries that are multiplied with a row while it is in registers.
const TILE: usize = 4;

/// Number of rows that are multiplied together.
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

/// Calls [`products_of_rows`] or its version for the instructions that the calling function is
/// compiled for. A macro, because only a `multiversion` function knows them.
macro_rules! products_of_rows {
    ($rows:expr, $distances:expr, $queries:expr) => {
        match_target! {
            // SAFETY: This arm is compiled only where these instructions are enabled: by this
            // version of the function, or for the whole build.
            "x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c" => unsafe {
                avx512::products_of_rows($rows, $distances, $queries)
            },
            // SAFETY: As above.
            "x86_64+avx2+f16c" => unsafe { avx2::products_of_rows($rows, $distances, $queries) },
            _ => products_of_rows($rows, $distances, $queries),
        }
    };
}

/// Computes the dot products of a range of rows with `G` queries, into `out` `[G, range.len()]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c", "x86_64+avx2+f16c"))]
#[allow(unsafe_code, unused_unsafe, reason = "safe only in versions for these machines")]
fn multiply_tile<T: Element, const G: usize>(
    layout: &BlockLayout,
    rows: Blocks<'_, T>,
    range: &Range<usize>,
    queries: &[QueryChunk<G>],
    out: &mut [f32],
) {
    let (dim, stride, length) = (layout.dim, layout.stride, range.len());
    let mut done = 0;
    while done < length {
        let (block, left) = layout.rest_of_block(rows, range.start + done);
        let count = left.min(length - done);
        // Elements of the block that is read next.
        let next = range.start + done + count;
        let next = if next < range.end { layout.rest_of_block(rows, next).0 } else { &[] };
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
            let distance = distance(here, ahead);
            let products = products_of_rows!(four, [distance; ROWS], queries);
            for (g, products) in products.iter().enumerate().take(G) {
                store(products, &mut out[g * length..][done + place..done + count]);
            }
        }
        done += count;
    }
}

/// Computes the dot products of some rows with a query, into `out` `[tokens]`. Each equals the
/// result of [`dot`].
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c", "x86_64+avx2+f16c"))]
#[allow(unsafe_code, unused_unsafe, reason = "safe only in versions for these machines")]
pub(super) fn dots_of<T: Element>(
    layout: &BlockLayout,
    rows: Blocks<'_, T>,
    tokens: &[usize],
    query: &[f32],
    out: &mut [f32],
) {
    assert_eq!(tokens.len(), out.len(), "a product of each row");
    let query = &split_into_chunks::<1>(query, layout.dim)[..];
    for place in (0..tokens.len()).step_by(ROWS) {
        let mut four: [&[T]; ROWS] = [&[]; ROWS];
        let mut distances = [0; ROWS];
        for (row, (four, distance_of)) in four.iter_mut().zip(&mut distances).enumerate() {
            let place = place + row.min(tokens.len() - 1 - place);
            *four = layout.row(rows, tokens[place]);
            if let Some(&ahead) = tokens.get(place + AHEAD) {
                *distance_of = distance(four, layout.row(rows, ahead));
            }
        }
        let [products, ..] = products_of_rows!(four, distances, query);
        store(&products, &mut out[place..]);
    }
}

/// Number of bytes from the first element of `here` to that of `ahead`.
#[inline(always)]
fn distance<T>(here: &[T], ahead: &[T]) -> usize {
    ahead.as_ptr().addr().wrapping_sub(here.as_ptr().addr())
}

/// Writes the products of up to [`ROWS`] rows to the beginning of `out`.
#[inline(always)]
fn store(products: &[f32; ROWS], out: &mut [f32]) {
    match out.first_chunk_mut() {
        Some(out) => *out = *products,
        None => out.copy_from_slice(&products[..out.len()]),
    }
}

/// Prefetches the counterpart of a row's chunk `place` in the row `distance` bytes after it, once
/// per cache line: many requests at once would wait for each other.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn prefetch_chunk<T>(chunk: &[T; LANES], place: usize, distance: usize) {
    if place.is_multiple_of((LINE / size_of::<[T; LANES]>()).max(1)) {
        prefetch_after(chunk, distance);
    }
}

/// Dot products of [`ROWS`] rows with `G` queries, `[TILE][ROWS]`, with zeros beyond the queries.
/// The versions for AVX2 and AVX-512 prefetch the rows `distances` bytes after them.
#[inline(always)]
#[allow(dead_code, reason = "a build for AVX2 or AVX-512 alone never calls it")]
fn products_of_rows<T: Element, const G: usize>(
    rows: [&[T]; ROWS],
    _distances: [usize; ROWS],
    queries: &[QueryChunk<G>],
) -> [[f32; ROWS]; TILE] {
    let mut out = [[0.0; ROWS]; TILE];
    for (place, row) in rows.into_iter().enumerate() {
        for (out, product) in out.iter_mut().zip(products(row, queries)) {
            out[place] = product;
        }
    }
    out
}

/// Dot products of one row with `G` queries.
#[inline(always)]
#[allow(dead_code, reason = "a build for AVX2 or AVX-512 alone never calls it")]
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
#[allow(dead_code, reason = "a build for AVX2 or AVX-512 alone never calls it")]
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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use half::bf16;

    use super::*;

    /// Checks all versions for this machine with rows of `dim` elements and `G` queries.
    #[allow(unsafe_code, reason = "the machine's instructions are tested")]
    fn check<T: Element, const G: usize>(dim: usize, number: impl Fn(usize) -> T) {
        let rows: Vec<T> = (0..ROWS * dim).map(number).collect();
        let mut four: [&[T]; ROWS] = [&[]; ROWS];
        four.iter_mut().zip(rows.chunks_exact(dim)).for_each(|(four, row)| *four = row);
        let queries: Vec<f32> = (0..G * dim).map(|i| (i as f32 * 0.7).sin()).collect();
        let queries = &split_into_chunks::<G>(&queries, dim)[..];
        let expected = products_of_rows(four, [0; ROWS], queries);
        // SAFETY: Each version is called only on a machine with its instructions.
        unsafe {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                assert_eq!(avx2::products_of_rows(four, [64; ROWS], queries), expected, "{dim}");
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("f16c")
            {
                assert_eq!(avx512::products_of_rows(four, [64; ROWS], queries), expected, "{dim}");
            }
        }
    }

    /// All versions compute the same bits.
    #[test]
    fn versions_agree() {
        let number = |i: usize| (i as f32 * 1.3).cos();
        for dim in 1..=70 {
            check::<f32, 4>(dim, number);
            check::<bf16, 3>(dim, |i| bf16::from_f32(number(i)));
            check::<i8, 1>(dim, |i| (i * 37 % 255) as i8);
        }
    }
}
