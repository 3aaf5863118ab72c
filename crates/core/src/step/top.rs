//! The `k` best of many scores, without sorting them.
//!
//! Two steps: a *cut*, the `k`-th best score among the tokens not taken, which each number type
//! finds in its own way; then one pass that marks what is above it, and of its equals the first.
//! A sample of the scores only says where to look: the result never depends on it.
//! Cost: O(visible), most of it in comparisons of whole vectors.

mod float;
mod short;

use multiversion::multiversion;

/// A number type that tokens can be ranked by, larger is better: `f32` or `u16`.
pub trait Rank: Copy + Into<f32> + sealed::Cuts {}

impl Rank for f32 {}
impl Rank for u16 {}

mod sealed {
    pub trait Cuts: PartialOrd + Sized {
        /// Where the best `k` untaken scores end; there are more than `k` of them.
        fn cut(scores: &[Self], taken: &[u64], k: usize) -> Cut<Self>;
    }

    /// Where the best `k` untaken scores end.
    #[derive(Clone, Copy, Debug)]
    pub struct Cut<S> {
        /// The least of them, and how many of them equal it; `None` if `k` is 0.
        pub(crate) least: Option<(S, usize)>,
        /// The best of the others.
        pub(crate) next: S,
    }
}

/// With fewer scores than this, looking at all of them costs less than guessing.
const WORTH_GUESSING: usize = 4096;

/// One score in this many is looked at for a guess.
const STRIDE: usize = 64;

/// Ranks in a sample of every [`STRIDE`]-th score between which the `k`-th best of all lies, most
/// likely: four standard deviations, were the scores in random order.
fn likely_ranks(k: usize) -> (usize, usize) {
    let middle = k / STRIDE;
    let margin = 4 * middle.isqrt() + 4;
    (middle.saturating_sub(margin), middle + margin)
}

/// Every [`STRIDE`]-th score, if its token is not taken.
fn sample<S: Copy>(scores: &[S], taken: &[u64]) -> Vec<S> {
    let tokens = (0..scores.len()).step_by(STRIDE);
    tokens.filter(|token| taken[token / 64] >> (token % 64) & 1 == 0).map(|t| scores[t]).collect()
}

/// Takes the untaken tokens whose score exceeds `least`, and the first `equals` of those whose
/// score equals it.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
pub(crate) fn mark<S: Rank>(scores: &[S], least: S, equals: usize, taken: &mut [u64]) {
    let mut wanted = equals;
    for (scores, word) in scores.chunks(64).zip(taken) {
        let mut new = which(scores, |score| score > least);
        if wanted > 0 {
            let first = lowest(which(scores, |score| score == least) & !*word, wanted);
            wanted -= first.count_ones() as usize;
            new |= first;
        }
        *word |= new;
    }
}

/// A bit for each of at most 64 scores. The loop over an array is one that compilers turn into
/// comparisons of vectors.
#[inline(always)]
fn which<S: Copy>(scores: &[S], test: impl Fn(S) -> bool) -> u64 {
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

/// The lowest `count` bits that are set, or all.
#[inline(always)]
fn lowest(bits: u64, count: usize) -> u64 {
    if bits.count_ones() as usize <= count {
        return bits;
    }
    bits ^ (0..count).fold(bits, |rest, _| rest & (rest - 1))
}

/// Calls `visit` with the place of each bit that is set, ascending.
#[inline(always)]
pub(crate) fn each_bit(bits: u64, mut visit: impl FnMut(usize)) {
    let mut rest = bits;
    while rest != 0 {
        visit(rest.trailing_zeros() as usize);
        rest &= rest - 1;
    }
}

#[cfg(test)]
mod tests;
