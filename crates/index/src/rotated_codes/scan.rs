//! Products of codes with queries.

#[cfg(target_arch = "x86_64")]
#[allow(dead_code, reason = "a build for VNNI alone never calls it")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod vnni;

use half::bf16;
use multiversion::multiversion;
use multiversion::target::match_target;
use vattention_core::step::Element;

use super::{BLOCK, GROUP, PER_WORD};
use crate::Rotation;

/// Number of queries that one pass over the codes serves.
pub(super) const QUERIES_PER_PASS: usize = 4;

/// Largest element of a rounded query.
const MAX_INTEGER: f32 = 127.0;

/// `1.5 · 2^23`, whose addition rounds a small number to an integer in the low bits.
const TO_LOW_BITS: f32 = 12_582_912.0;

/// A query, rotated and rounded to integers.
#[derive(Clone, Debug)]
pub(super) struct CodeQuery {
    rotated: Vec<f32>,
    /// Integers as bytes, four to a word: word `4 j + k` holds the four elements from `16 j + 4 k`
    /// on, in the order of the bytes of codes.
    words: Vec<u32>,
    /// Three times the sum of the integers: twice their product with the middle of the codes, 3/2.
    middle: i32,
    /// Factor from a product of integers to a term of a logit, for `f = 1`.
    unit: f32,
}

impl CodeQuery {
    pub(super) fn new(query: &[f32], rotation: &Rotation, shrink: f32) -> Self {
        let mut rotated = query.to_vec();
        rotation.apply(&mut rotated);
        let peak = largest_magnitude(&rotated);
        let mut integers = vec![0; query.len().next_multiple_of(PER_WORD)];
        if peak > 0.0 {
            round(&rotated, peak, &mut integers);
        }
        let middle = 3 * integers.iter().copied().map(i32::from).sum::<i32>();
        let (fours, _) = integers.as_chunks::<4>();
        let words = fours.iter().map(|four| u32::from_le_bytes(four.map(|x| x as u8))).collect();
        Self { rotated, words, middle, unit: shrink * (peak / MAX_INTEGER) / 2.0 }
    }

    /// Returns true if the terms of codes are below half of the largest f32, for codes whose factor
    /// times twice the product with the integers is at most `longest`.
    pub(super) fn is_finite(&self, longest: f32) -> bool {
        self.unit * longest < f32::MAX / 2.0
    }
}

/// Upper bound on the magnitude of twice the product of a code with the integers of a query, for
/// each element.
pub(super) const MOST_CODE: usize = 3 * 127;

/// Number of elements of a query that are compared together.
const LANES: usize = 16;

/// Distance in bytes of what is fetched into the cache from what is in use. Hardware does not fetch
/// beyond a page, of 4 KiB.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 4096;

/// Largest magnitude of an element; elements that are NaN do not count.
fn largest_magnitude(x: &[f32]) -> f32 {
    let mut most = [0.0_f32; LANES];
    for x in x.chunks(LANES) {
        for (most, x) in most.iter_mut().zip(x) {
            *most = most.max(x.abs());
        }
    }
    most.into_iter().fold(0.0, f32::max)
}

/// Rounds multiples of `peak / 127` to integers.
fn round(x: &[f32], peak: f32, out: &mut [i8]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x / peak * MAX_INTEGER + TO_LOW_BITS).to_bits() as i8;
    }
}

/// Integer product of each token's code in a block with the integers of a query.
type BlockProducts = [i32; BLOCK];

/// Predicts the logits of the tokens whose codes begin `words`, one for each of `factors`, and
/// writes them to `out`, `[queries][..]`, from token `first` on. The tokens are complete blocks,
/// whose centres are given with the number from one query to the next.
pub(super) fn predict_logits<R: AsMut<[f32]>>(
    words: &[u32],
    factors: &[bf16],
    queries: &[CodeQuery],
    (centres, stride): (&[f32], usize),
    first: usize,
    out: &mut [R],
) {
    let rows = out.iter_mut().map(|out| &mut out.as_mut()[first..][..factors.len()]);
    let mut rows = rows.zip(queries).zip(centres.chunks(stride.max(1)));
    let mut next = || {
        let ((out, query), centres) = rows.next().expect("one row for each query");
        LogitRow { query, centres, out: out.as_chunks_mut().0 }
    };
    match queries.len() {
        1 => predict([next()], words, factors),
        2 => predict([next(), next()], words, factors),
        3 => predict([next(), next(), next()], words, factors),
        _ => predict([next(), next(), next(), next()], words, factors),
    }
}

/// A query and its logits.
pub(super) struct LogitRow<'a> {
    pub(super) query: &'a CodeQuery,
    /// Products of the query with the means of blocks, `[blocks]`.
    pub(super) centres: &'a [f32],
    /// Predicted logits, `[blocks]`.
    pub(super) out: &'a mut [[f32; BLOCK]],
}

/// See [`predict_logits`].
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vnni+fma+f16c",
    "x86_64+avx2+fma+f16c"
))]
fn predict<const H: usize>(mut rows: [LogitRow<'_>; H], words: &[u32], factors: &[bf16]) {
    let per_block = rows[0].query.words.len() / 4 * BLOCK;
    let factors = factors.as_chunks::<BLOCK>().0;
    for (block, (words, factors)) in words.chunks_exact(per_block).zip(factors).enumerate() {
        #[allow(unsafe_code, unused_unsafe, reason = "safe only in a version for these machines")]
        {
            match_target! {
                // SAFETY: This arm is compiled only where these instructions are enabled: by this
                // version of the function, or for the whole build.
                "x86_64+avx512f+avx512vnni" => unsafe {
                    vnni::predict_block(words, factors, block, &mut rows);
                },
                // SAFETY: As above.
                "x86_64+avx2+fma" => unsafe {
                    avx2::predict_block(words, factors, block, &mut rows);
                },
                _ => predict_block(words, factors, block, &mut rows),
            }
        }
    }
}

/// Predicts the logits of a block, whose codes and factors are given.
#[inline(always)]
#[allow(dead_code, reason = "a build for AVX2 or VNNI alone never calls it")]
pub(super) fn predict_block<const H: usize>(
    words: &[u32],
    factors: &[bf16; BLOCK],
    block: usize,
    rows: &mut [LogitRow<'_>; H],
) {
    let mut products = [[0; BLOCK]; H];
    multiply(words, integers(rows), &mut products);
    add_centres(&products, factors, block, rows);
}

/// Integers of the queries of rows.
#[inline(always)]
fn integers<'a, const H: usize>(rows: &[LogitRow<'a>; H]) -> [&'a [u32]; H] {
    std::array::from_fn(|i| &rows[i].query.words[..])
}

/// Computes the logits of a block from its products with the integers of queries.
#[inline(always)]
fn add_centres<const H: usize>(
    products: &[BlockProducts; H],
    factors: &[bf16; BLOCK],
    block: usize,
    rows: &mut [LogitRow<'_>; H],
) {
    for (row, products) in rows.iter_mut().zip(products) {
        let (centre, out) = (row.centres[block], &mut row.out[block]);
        let (unit, middle) = (row.query.unit, row.query.middle);
        for ((out, factor), product) in out.iter_mut().zip(factors).zip(products) {
            // Codes 0, 1, 2, 3 represent −3/2, −1/2, 1/2, 3/2.
            let twice = (2 * product - middle) as f32;
            *out = (unit * factor.wide()).mul_add(twice, centre);
        }
    }
}

/// Computes the products of up to [`QUERIES_PER_PASS`] queries with the means of consecutive
/// blocks, `[groups][dim][GROUP]`, multiplied by `scale`. Writes those of the first `count` blocks
/// to `out`, `[queries][stride]`.
pub(super) fn predict_centres(
    means: &[bf16],
    queries: &[CodeQuery],
    scale: f32,
    out: &mut [f32],
    [count, stride]: [usize; 2],
) {
    let mut rows = out.chunks_mut(stride.max(1));
    let mut next = || &mut rows.next().expect("one row for each query")[..count];
    match queries {
        [a] => multiply_means(&columns([a]), means, scale, [next()]),
        [a, b] => multiply_means(&columns([a, b]), means, scale, [next(), next()]),
        [a, b, c] => {
            multiply_means(&columns([a, b, c]), means, scale, [next(), next(), next()]);
        }
        [a, b, c, d, ..] => {
            let out = [next(), next(), next(), next()];
            multiply_means(&columns([a, b, c, d]), means, scale, out);
        }
        [] => {}
    }
}

/// Rotated queries, `[dim][queries]`.
fn columns<const H: usize>(queries: [&CodeQuery; H]) -> Vec<[f32; H]> {
    (0..queries[0].rotated.len()).map(|i| queries.map(|query| query.rotated[i])).collect()
}

/// See [`predict_centres`]. Sums are computed in an order that does not depend on the machine.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn multiply_means<const H: usize>(
    queries: &[[f32; H]],
    means: &[bf16],
    scale: f32,
    mut out: [&mut [f32]; H],
) {
    for (group, means) in means.chunks_exact(GROUP * queries.len()).enumerate() {
        let mut sums = [[0.0_f32; GROUP]; H];
        for (query, means) in queries.iter().zip(means.as_chunks::<GROUP>().0) {
            for row in 0..H {
                for i in 0..GROUP {
                    sums[row][i] = query[row].mul_add(means[i].wide(), sums[row][i]);
                }
            }
        }
        for (sums, out) in sums.iter().zip(&mut out) {
            for (out, sum) in out[group * GROUP..].iter_mut().zip(sums) {
                *out = sum * scale;
            }
        }
    }
}

/// Computes the products of a block's codes with the integers of queries.
#[inline(always)]
fn multiply<const H: usize>(words: &[u32], queries: [&[u32]; H], out: &mut [BlockProducts; H]) {
    for (query, out) in queries.iter().zip(out) {
        out.fill(0);
        for (words, query) in words.chunks_exact(BLOCK).zip(query.chunks_exact(4)) {
            for (shift, integers) in query.iter().enumerate() {
                for (byte, integer) in integers.to_le_bytes().into_iter().enumerate() {
                    let integer = i32::from(integer as i8);
                    for (out, word) in out.iter_mut().zip(words) {
                        *out += (word >> (8 * byte + 2 * shift) & 3) as i32 * integer;
                    }
                }
            }
        }
    }
}
