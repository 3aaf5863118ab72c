//! Selection of the `k` best of many scores, without sorting them.
//!
//! The selection has two steps. The first finds a *cut*, the `k`-th best score among the tokens
//! that are not picked yet, by a method of each number type. The second marks the tokens above the
//! cut, and the first of the tokens equal to it, in one pass. A sample of the scores suggests where
//! to search for the cut; the result does not depend on the sample.
//!
//! The cost is O(visible), mostly for comparisons of whole vectors.

mod float;
mod short;

use multiversion::multiversion;

/// A number type of scores, where larger is better: `f32` or `u16`.
pub trait Rank: Copy + Into<f32> + sealed::Cuts {}

impl Rank for f32 {}
impl Rank for u16 {}

mod sealed {
    pub trait Cuts: PartialOrd + Sized {
        /// Finds the cut below the best `k` scores of tokens that are not taken, of which there are
        /// more than `k`.
        fn cut(scores: &[Self], taken: &[u64], k: usize) -> Cut<Self>;
    }

    /// Cut between the best `k` scores of untaken tokens and the others.
    #[derive(Clone, Copy, Debug)]
    pub struct Cut<S> {
        /// Smallest of the best `k` scores, and the number of best scores equal to it; `None` if
        /// `k` is 0.
        pub(crate) least: Option<(S, usize)>,
        /// Best of the other scores.
        pub(crate) next: S,
    }
}

/// Number of scores up to which a search of all of them costs less than a guess from a sample.
const WORTH_GUESSING: usize = 4096;

/// Distance of successive scores in a sample.
const STRIDE: usize = 64;

/// Ranks, in a sample of every [`STRIDE`]-th score, that most likely enclose the `k`-th best of all
/// scores. They are four standard deviations above and below the expected rank, for scores in
/// random order.
fn likely_ranks(k: usize) -> (usize, usize) {
    let middle = k / STRIDE;
    let margin = 4 * middle.isqrt() + 4;
    (middle.saturating_sub(margin), middle + margin)
}

/// Sample of every [`STRIDE`]-th score, without those of taken tokens.
fn sample<S: Copy>(scores: &[S], taken: &[u64]) -> Vec<S> {
    let tokens = (0..scores.len()).step_by(STRIDE);
    tokens.filter(|token| taken[token / 64] >> (token % 64) & 1 == 0).map(|t| scores[t]).collect()
}

/// Marks the tokens whose score exceeds `least`, and the first `equals` untaken tokens whose score
/// equals it, as taken.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
pub(crate) fn mark<S: Rank>(scores: &[S], least: S, equals: usize, taken: &mut [u64]) {
    let mut missing = equals;
    for (scores, word) in scores.chunks(64).zip(taken) {
        let mut new = mask_where(scores, |score| score > least);
        if missing > 0 {
            let first =
                keep_lowest_bits(mask_where(scores, |score| score == least) & !*word, missing);
            missing -= first.count_ones() as usize;
            new |= first;
        }
        *word |= new;
    }
}

/// Bit mask of the scores, at most 64, for which `test` returns true. The compiler turns the loop
/// over an array into vector comparisons.
#[inline(always)]
fn mask_where<S: Copy>(scores: &[S], test: impl Fn(S) -> bool) -> u64 {
    let mut bits = 0;
    if let Ok(scores) = <&[S; 64]>::try_from(scores) {
        for (i, &score) in scores.iter().enumerate() {
            bits |= u64::from(test(score)) << i;
        }
    } else {
        for (i, &score) in scores.iter().enumerate() {
            bits |= u64::from(test(score)) << i;
        }
    }
    bits
}

/// Clears all but the lowest `count` bits that are set.
#[inline(always)]
fn keep_lowest_bits(bits: u64, count: usize) -> u64 {
    if bits.count_ones() as usize <= count {
        return bits;
    }
    bits ^ (0..count).fold(bits, |rest, _| rest & (rest - 1))
}

/// Calls `visit` with the index of each bit that is set, ascending.
#[inline(always)]
pub(crate) fn for_each_bit(bits: u64, mut visit: impl FnMut(usize)) {
    let mut rest = bits;
    while rest != 0 {
        visit(rest.trailing_zeros() as usize);
        rest &= rest - 1;
    }
}

#[cfg(test)]
mod tests;
