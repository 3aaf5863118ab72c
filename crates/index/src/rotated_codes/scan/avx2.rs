//! Products by AVX2, for sixteen tokens at a time: the codes of four elements of a token are the
//! bytes of a word.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use half::bf16;

use super::{AHEAD, BLOCK, BlockProducts, LogitRow, add_centres, integers};
use vattention_core::step::prefetch_after;

/// Number of tokens in a register.
const LANES: usize = 8;

/// Number of words whose products are summed in 16 bits: a word adds at most `4 · 2 · 3 · 127`.
const WORDS: usize = 8;

/// Version of [`predict_block`](super::predict_block) for AVX2.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn predict_block<const H: usize>(
    words: &[u32],
    factors: &[bf16; BLOCK],
    block: usize,
    rows: &mut [LogitRow<'_>; H],
) {
    prefetch_after(factors, AHEAD);
    prefetch_after(words, AHEAD);
    let mut products = [[0; BLOCK]; H];
    multiply(words, integers(rows), &mut products);
    add_centres(&products, factors, block, rows);
}

/// Computes the products of a block's codes with the integers of queries.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply<const H: usize>(words: &[u32], queries: [&[u32]; H], out: &mut [BlockProducts; H]) {
    let three = _mm256_set1_epi8(3);
    let one = _mm256_set1_epi16(1);
    for first in (0..BLOCK).step_by(2 * LANES) {
        let mut totals = [[_mm256_setzero_si256(); 2]; H];
        for (part, words) in words.chunks(WORDS * BLOCK).enumerate() {
            let mut sums = [[_mm256_setzero_si256(); 2]; H];
            for (j, words) in words.chunks_exact(BLOCK).enumerate() {
                let mut codes = [load(&words[first..]), load(&words[first + LANES..])];
                for shift in 0..4 {
                    let place = 4 * (part * WORDS + j) + shift;
                    let low = codes.map(|codes| _mm256_and_si256(codes, three));
                    for (sums, query) in sums.iter_mut().zip(&queries) {
                        let query = _mm256_set1_epi32(query[place] as i32);
                        for (sum, low) in sums.iter_mut().zip(low) {
                            *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(low, query));
                        }
                    }
                    codes = codes.map(|codes| _mm256_srli_epi32::<2>(codes));
                }
            }
            for (totals, sums) in totals.iter_mut().zip(sums) {
                for (total, sum) in totals.iter_mut().zip(sums) {
                    *total = _mm256_add_epi32(*total, _mm256_madd_epi16(sum, one));
                }
            }
        }
        for (out, totals) in out.iter_mut().zip(totals) {
            for (half, total) in totals.into_iter().enumerate() {
                let numbers: [i32; LANES] = bytemuck::must_cast(total);
                out[first + half * LANES..][..LANES].copy_from_slice(&numbers);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(words: &[u32]) -> __m256i {
    let words: [u32; LANES] = words[..LANES].try_into().expect("one word for each lane");
    bytemuck::must_cast(words)
}
