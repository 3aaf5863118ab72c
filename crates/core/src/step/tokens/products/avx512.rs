//! A part of a query in a register: of plain Rust the compiler makes code twenty times as slow here.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use super::{LANES, Part, add_up, wide};
use crate::step::Element;

/// The dot products of one row with `G` queries, by the same operations as everywhere.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(super) fn products<T: Element, const G: usize>(row: &[T], queries: &[Part<G>]) -> [f32; G] {
    let mut sums = [_mm512_setzero_ps(); G];
    let mut add = |numbers: [f32; LANES], queries: &Part<G>| {
        let numbers: __m512 = bytemuck::must_cast(numbers);
        for (sum, query) in sums.iter_mut().zip(queries) {
            *sum = _mm512_add_ps(*sum, _mm512_mul_ps(numbers, bytemuck::must_cast(*query)));
        }
    };
    let (chunks, rest) = row.as_chunks::<LANES>();
    for (chunk, queries) in chunks.iter().zip(queries) {
        add(wide(chunk), queries);
    }
    if !rest.is_empty() {
        add(wide(rest), &queries[chunks.len()]);
    }
    sums.map(|sums| add_up(bytemuck::must_cast(sums)))
}
