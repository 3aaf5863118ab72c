//! Dot products of rows with queries. However many are made together, each is the same to the last bit.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod prefetch;

use std::ops::Range;

use multiversion::multiversion;
use multiversion::target::match_target;

use super::{BlockLayout, Blocks, Element};

/// Numbers multiplied at a time.
const LANES: usize = 16;

/// Queries that meet a row while it is in registers.
const TILE: usize = 4;

/// Rows that are multiplied together where vectors have 16 elements.
#[cfg(target_arch = "x86_64")]
const ROWS: usize = 4;

/// How many rows ahead of the one that is multiplied another is fetched from memory.
const AHEAD: usize = 32;

/// A part of `G` queries: [`LANES`] elements of each.
type Part<const G: usize> = [[f32; LANES]; G];

/// The dot products of a range of rows with queries `[queries · dim]`, into `out` `[queries, range.len()]`: each the same
/// as [`dot`]'s.
///
/// # Panics
/// If there is no element, or `out` is not as large.
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
            4 => tile(layout, rows, range, &parts::<4>(queries, layout.dim), out),
            3 => tile(layout, rows, range, &parts::<3>(queries, layout.dim), out),
            2 => tile(layout, rows, range, &parts::<2>(queries, layout.dim), out),
            _ => tile(layout, rows, range, &parts::<1>(queries, layout.dim), out),
        }
    }
}

/// Queries `[G · dim]` part by part; the last is filled with zeros.
fn parts<const G: usize>(queries: &[f32], dim: usize) -> Vec<Part<G>> {
    let mut parts = vec![[[0.0; LANES]; G]; dim.div_ceil(LANES)];
    for (g, query) in queries.chunks_exact(dim).enumerate() {
        for (part, numbers) in parts.iter_mut().zip(query.chunks(LANES)) {
            part[g][..numbers.len()].copy_from_slice(numbers);
        }
    }
    parts
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c", "x86_64+avx2+f16c"))]
fn tile<T: Element, const G: usize>(
    layout: &BlockLayout,
    rows: Blocks<'_, T>,
    range: &Range<usize>,
    queries: &[Part<G>],
    out: &mut [f32],
) {
    let (dim, stride) = (layout.dim, layout.stride);
    let mut done = 0;
    while done < range.len() {
        let (block, rows) = layout.rest_of_block(rows, range.start + done);
        let count = rows.min(range.len() - done);
        let row = |place: usize| &block[place * stride..][..dim];
        #[allow(unsafe_code, unused_unsafe, reason = "safe only in AVX-512's own version")]
        let together = match_target! {
            "x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c" => {
                let store = |place: usize, products: &[[f32; ROWS]]| {
                    for (g, products) in products.iter().enumerate() {
                        let first = g * range.len() + done + place;
                        out[first..first + ROWS].copy_from_slice(products);
                    }
                };
                // SAFETY: This arm is compiled only where all these instructions are enabled: by
                // this version of the function, or for the whole build.
                unsafe { avx512::multiply_rows(row, count, queries, store) }
            }
            _ => 0,
        };
        for place in together..count {
            match_target! {
                "x86_64+avx512f" => {},
                "x86_64+avx2" => if place + AHEAD < count {
                    prefetch::prefetch(row(place + AHEAD));
                },
                _ => {}
            }
            #[allow(unsafe_code, unused_unsafe, reason = "safe only in AVX-512's own version")]
            let products = match_target! {
                "x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c" => {
                    // SAFETY: As above.
                    unsafe { avx512::products(row(place), queries) }
                }
                _ => products(row(place), queries),
            };
            for (g, product) in products.into_iter().enumerate() {
                out[g * range.len() + done + place] = product;
            }
        }
        done += count;
    }
}

/// The dot products of some rows with a query, into `out` `[tokens]`: each the same as [`dot`]'s.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c", "x86_64+avx2+f16c"))]
pub(super) fn dots_of<T: Element>(
    layout: &BlockLayout,
    rows: Blocks<'_, T>,
    tokens: &[usize],
    query: &[f32],
    out: &mut [f32],
) {
    assert_eq!(tokens.len(), out.len(), "a product of each row");
    let queries = parts::<1>(query, layout.dim);
    for (place, out) in out.iter_mut().enumerate() {
        if let Some(&ahead) = tokens.get(place + AHEAD) {
            let row = layout.row(rows, ahead);
            match_target! {
                "x86_64+avx512f" => prefetch::prefetch(row),
                "x86_64+avx2" => prefetch::prefetch(row),
                _ => { let _ = row; }
            }
        }
        let row = layout.row(rows, tokens[place]);
        #[allow(unsafe_code, unused_unsafe, reason = "safe only in AVX-512's own version")]
        let products = match_target! {
            "x86_64+avx512f+avx512bw+avx512vl+avx512dq+f16c" => {
                // SAFETY: As above.
                unsafe { avx512::products(row, &queries) }
            }
            _ => products(row, &queries),
        };
        [*out] = products;
    }
}

/// The dot products of one row with `G` queries.
#[inline(always)]
#[allow(dead_code, reason = "a build for AVX-512 alone never calls it")]
fn products<T: Element, const G: usize>(row: &[T], queries: &[Part<G>]) -> [f32; G] {
    let mut sums = [[0.0; LANES]; G];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for (chunk, queries) in chunks.iter().zip(queries) {
        add_products(&mut sums, &wide(chunk), queries);
    }
    // Apart, so that the sums of whole chunks stay in registers.
    if !rest.is_empty() {
        add_products(&mut sums, &wide(rest), &queries[chunks.len()]);
    }
    sums.map(add_up)
}

/// Up to [`LANES`] elements, and zeros. A loop: `map` of an array is not always made part of its caller.
#[inline(always)]
fn wide<T: Element>(row: &[T]) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    for (number, x) in numbers.iter_mut().zip(row) {
        *number = x.wide();
    }
    numbers
}

#[inline(always)]
#[allow(dead_code, reason = "a build for AVX-512 alone never calls it")]
fn add_products<const G: usize>(sums: &mut Part<G>, numbers: &[f32; LANES], queries: &Part<G>) {
    for (sums, query) in sums.iter_mut().zip(queries) {
        for ((sum, x), q) in sums.iter_mut().zip(numbers).zip(query) {
            *sum += x * q;
        }
    }
}

/// The dot product of one row with a query, in [`LANES`] partial sums, added up in a fixed order.
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
    add_up(sums)
}

#[inline(always)]
fn add_up(sums: [f32; LANES]) -> f32 {
    let eight: [f32; LANES / 2] = std::array::from_fn(|i| sums[i] + sums[i + 8]);
    let four: [f32; LANES / 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}
