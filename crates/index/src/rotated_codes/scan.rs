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

use super::code_blocks::CodeBlocks;
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
}

/// Number of elements of a query that are compared together.
const LANES: usize = 16;

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

/// Predicts the logits of the first tokens of `blocks`, whose `factors` are given, and writes them
/// to `out`, `[queries][..]`, from token `first` on. The tokens are complete blocks.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vnni+fma+f16c",
    "x86_64+avx2+fma+f16c"
))]
pub(super) fn predict_logits(
    blocks: &CodeBlocks,
    factors: &[bf16],
    queries: &[CodeQuery],
    first: usize,
    out: &mut [&mut [f32]],
) {
    let Some(query) = queries.first() else { return };
    let (CodeBlocks { words, means, .. }, dim) = (blocks, query.rotated.len());
    let per_block = dim.div_ceil(PER_WORD) * BLOCK;
    // The last query is repeated if there are fewer than `QUERIES_PER_PASS`.
    let query = |i: usize| &queries[i.min(queries.len() - 1)];
    let integers: [&[u32]; QUERIES_PER_PASS] = std::array::from_fn(|i| &query(i).words[..]);
    let rotated: [&[f32]; QUERIES_PER_PASS] = std::array::from_fn(|i| &query(i).rotated[..]);
    let (mut products, mut centres) =
        ([[0; BLOCK]; QUERIES_PER_PASS], [[0.0; GROUP]; QUERIES_PER_PASS]);
    for (block, words) in words.chunks_exact(per_block).enumerate().take(factors.len() / BLOCK) {
        let place = block % GROUP;
        if place == 0 {
            centres = products_with_means(rotated, &means[block * dim..][..GROUP * dim]);
        }
        #[allow(unsafe_code, unused_unsafe, reason = "safe only in a version for these machines")]
        {
            match_target! {
                "x86_64+avx512f+avx512vnni" => {
                    // SAFETY: This arm is compiled only where these instructions are enabled: by
                    // this version of the function, or for the whole build.
                    unsafe {
                        match queries.len() {
                            1 => vnni::products::<1>(words, integers, &mut products),
                            2 => vnni::products::<2>(words, integers, &mut products),
                            3 => vnni::products::<3>(words, integers, &mut products),
                            _ => vnni::products::<4>(words, integers, &mut products),
                        }
                    }
                }
                "x86_64+avx2" => {
                    // SAFETY: As above.
                    unsafe {
                        match queries.len() {
                            1 => avx2::products::<1>(words, integers, &mut products),
                            2 => avx2::products::<2>(words, integers, &mut products),
                            3 => avx2::products::<3>(words, integers, &mut products),
                            _ => avx2::products::<4>(words, integers, &mut products),
                        }
                    }
                }
                _ => products_plain(words, &integers[..queries.len()], &mut products),
            }
        }
        let factors = &factors[block * BLOCK..][..BLOCK];
        for (i, (query, out)) in queries.iter().zip(&mut *out).enumerate() {
            let (centre, out) = (centres[i][place], &mut out[first + block * BLOCK..][..BLOCK]);
            for ((out, factor), product) in out.iter_mut().zip(factors).zip(&products[i]) {
                // Codes 0, 1, 2, 3 represent −3/2, −1/2, 1/2, 3/2.
                let twice = (2 * product - query.middle) as f32;
                *out = centre + query.unit * factor.wide() * twice;
            }
        }
    }
}

/// Products of rotated queries with the means of a group of blocks `[dim][GROUP]`, summed in an
/// order that does not depend on the machine.
#[inline(always)]
fn products_with_means(
    queries: [&[f32]; QUERIES_PER_PASS],
    means: &[bf16],
) -> [[f32; GROUP]; QUERIES_PER_PASS] {
    let mut sums = [[0.0_f32; GROUP]; QUERIES_PER_PASS];
    for (i, means) in means.as_chunks::<GROUP>().0.iter().enumerate() {
        for (sums, query) in sums.iter_mut().zip(queries) {
            let q = query[i];
            for (sum, mean) in sums.iter_mut().zip(means) {
                *sum += q * mean.wide();
            }
        }
    }
    sums
}

/// Portable version of [`avx2::products`] and [`vnni::products`].
#[inline(always)]
#[allow(dead_code, reason = "a build for AVX2 or VNNI alone never calls it")]
pub(super) fn products_plain(words: &[u32], queries: &[&[u32]], out: &mut [BlockProducts]) {
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
