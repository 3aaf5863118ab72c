//! Products of codes with queries.

use half::bf16;
use multiversion::multiversion;
use multiversion::target::match_target;
use vattention_core::Element;

use super::rotation::rotate;
use super::{BLOCK, PER_WORD};

/// Queries that codes are unpacked for once.
pub(super) const TOGETHER: usize = 4;

/// The largest element of a rounded query.
const MAX_INTEGER: f32 = 127.0;

/// A query, rotated, and rounded to integers.
#[derive(Clone, Debug)]
pub(super) struct Query {
    rotated: Vec<f32>,
    /// The integers, four to a word as the bytes of codes are: those of elements `16 j + 4 k ..` in word `4 j + k`.
    words: Vec<u32>,
    /// Three times their sum.
    middle: i32,
    /// What a product of integers is multiplied by.
    unit: f32,
}

impl Query {
    pub(super) fn new(query: &[f32], shrink: f32) -> Self {
        let mut rotated = query.to_vec();
        rotate(&mut rotated);
        let peak = rotated.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let integer = |x: f32| if peak > 0.0 { (x / peak * MAX_INTEGER).round() as i8 } else { 0 };
        let mut integers: Vec<i8> = rotated.iter().copied().map(integer).collect();
        let middle = 3 * integers.iter().copied().map(i32::from).sum::<i32>();
        integers.resize(query.len().next_multiple_of(PER_WORD), 0);
        let (fours, _) = integers.as_chunks::<4>();
        let words = fours.iter().map(|four| u32::from_le_bytes(four.map(|x| x as u8))).collect();
        Self { rotated, words, middle, unit: shrink * (peak / MAX_INTEGER) / 2.0 }
    }
}

/// The integer products of a block's codes with the integers of a query, for each of its tokens.
type Products = [i32; BLOCK];

/// Sets the logits of the first `tokens`, in whole blocks, `[queries][..]`, as codes foretell them.
#[multiversion(targets("x86_64+avx2+fma+f16c"))]
pub(super) fn add_codes(
    words: &[u32],
    factors: &[bf16],
    means: &[bf16],
    queries: &[Query],
    tokens: usize,
    out: &mut [&mut [f32]],
) {
    let Some(first) = queries.first() else { return };
    let dim = first.rotated.len();
    let per_block = dim.div_ceil(PER_WORD) * BLOCK;
    let blocks = words.chunks_exact(per_block).zip(means.chunks_exact(dim));
    for (block, (words, mean)) in blocks.enumerate().take(tokens / BLOCK) {
        let mut products = [[0; BLOCK]; TOGETHER];
        let integers: [&[u32]; TOGETHER] =
            std::array::from_fn(|i| &queries[i.min(queries.len() - 1)].words[..]);
        match_target! {
            "x86_64+avx2" => match queries.len() {
                1 => avx2::products::<1>(words, integers, &mut products),
                2 => avx2::products::<2>(words, integers, &mut products),
                3 => avx2::products::<3>(words, integers, &mut products),
                _ => avx2::products::<4>(words, integers, &mut products),
            },
            _ => products_plain(words, &integers[..queries.len()], &mut products),
        }
        let factors = &factors[block * BLOCK..][..BLOCK];
        for ((query, out), products) in queries.iter().zip(&mut *out).zip(&products) {
            let centre = product(&query.rotated, mean);
            let out = &mut out[block * BLOCK..][..BLOCK];
            for ((out, factor), product) in out.iter_mut().zip(factors).zip(products) {
                // Codes 0, 1, 2, 3 stand for −3/2, −1/2, 1/2, 3/2.
                let twice = (2 * product - query.middle) as f32;
                *out = centre + query.unit * factor.wide() * twice;
            }
        }
    }
}

/// The sum of the squares of the factors of whole blocks.
#[multiversion(targets("x86_64+avx2+fma+f16c"))]
pub(super) fn squares(factors: &[bf16]) -> f64 {
    let mut sums = [0.0_f64; BLOCK];
    for factors in factors.as_chunks::<BLOCK>().0 {
        for (sum, factor) in sums.iter_mut().zip(factors) {
            let factor = f64::from(factor.wide());
            *sum += factor * factor;
        }
    }
    sums.iter().sum()
}

/// The product of a rotated query with a mean, in an order that does not depend on the machine.
#[inline(always)]
fn product(query: &[f32], mean: &[bf16]) -> f32 {
    const LANES: usize = 16;
    let ((query, query_rest), (mean, mean_rest)) =
        (query.as_chunks::<LANES>(), mean.as_chunks::<LANES>());
    let mut sums = [0.0_f32; LANES];
    for (query, mean) in query.iter().zip(mean) {
        for lane in 0..LANES {
            sums[lane] += query[lane] * mean[lane].wide();
        }
    }
    for (sum, (q, c)) in sums.iter_mut().zip(query_rest.iter().zip(mean_rest)) {
        *sum += q * c.wide();
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

/// What [`avx2::products`] computes, as plain Rust.
#[inline(always)]
pub(super) fn products_plain(words: &[u32], queries: &[&[u32]], out: &mut [Products]) {
    for (query, out) in queries.iter().zip(out) {
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

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    //! Sixteen tokens at a time: the codes of four elements of a token are four bytes.

    #[allow(clippy::wildcard_imports, reason = "most of it is used here")]
    use std::arch::x86_64::*;

    use super::{BLOCK, Products, TOGETHER};

    /// Tokens in a register.
    const LANES: usize = 8;

    /// Words of codes whose products 16 bits hold: a word adds `4 · 2 · 3 · 127` at the most.
    const WORDS: usize = 8;

    /// Products of a block's codes with `H` queries.
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn products<const H: usize>(
        words: &[u32],
        queries: [&[u32]; TOGETHER],
        out: &mut [Products; TOGETHER],
    ) {
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

    #[target_feature(enable = "avx2")]
    fn load(words: &[u32]) -> __m256i {
        let words: [u32; LANES] = words[..LANES].try_into().expect("as many words as lanes");
        bytemuck::must_cast(words)
    }
}
