//! Packed binary codes, and the number of bits in which they differ.

use multiversion::multiversion;

use super::Bits;
use vattention_index::Segmented;

/// Number of words in the longest code.
const WORDS: usize = 4;

/// Signs of one vector, lowest bits first. A bit is set if the number is positive.
pub(super) type Code = [u32; WORDS];

/// Packs the signs of at most 128 elements.
pub(super) fn pack(numbers: &[f32]) -> Code {
    let mut code = [0; WORDS];
    for (i, &x) in numbers.iter().enumerate() {
        code[i / 32] |= u32::from(x > 0.0) << (i % 32);
    }
    code
}

/// Codes of tokens in order, `bits / 8` bytes each, rounded up to words.
#[derive(Clone, Debug)]
pub struct Codes {
    /// First words of all codes, then second words, and so on, `[⌈bits / 32⌉][tokens]`.
    words: Segmented<Vec<Vec<u32>>>,
}

impl Codes {
    /// Creates an empty list of codes.
    pub fn new(bits: Bits) -> Self {
        let count = usize::from(bits.get()).div_ceil(32);
        Self { words: Segmented::new(vec![Vec::new(); count]) }
    }

    /// Adds the code of the next token. Words beyond the length of the codes are dropped.
    pub fn push(&mut self, code: Code) {
        for (words, word) in self.words.own_mut().iter_mut().zip(code) {
            words.push(word);
        }
    }

    /// Removes all but the first `tokens` codes.
    pub fn truncate(&mut self, tokens: usize) {
        self.words.truncate(tokens);
    }

    /// Moves the codes to memory that later clones share.
    pub fn share(&mut self) {
        self.words.share();
    }

    /// Size of the codes in bytes. Shared memory is [divided](Segmented::bytes) among those that
    /// use it.
    pub fn bytes(&self) -> usize {
        self.words.bytes()
    }

    /// Subtracts from the score of each of the first tokens, `[visible]`, the number of bits in
    /// which its code differs from each of `queries`. O(visible · words · queries).
    ///
    /// # Panics
    /// Panics in debug builds if a score is smaller than the number subtracted from it.
    pub fn subtract_differing(&self, queries: &[Code], scores: &mut [u16]) {
        for (tokens, segment) in self.words.segments(scores.len()) {
            let scores = &mut scores[tokens];
            for (i, words) in segment.iter().enumerate() {
                let queries: Vec<u32> = queries.iter().map(|code| code[i]).collect();
                let rest = subtract_chunks::<8>(words, &queries, scores);
                let rest = subtract_chunks::<4>(words, rest, scores);
                let rest = subtract_chunks::<2>(words, rest, scores);
                subtract_chunks::<1>(words, rest, scores);
            }
        }
    }
}

/// Subtracts for chunks of `QUERIES` queries, with one pass over the codes per chunk, and returns
/// the remaining queries.
fn subtract_chunks<'q, const QUERIES: usize>(
    words: &[u32],
    queries: &'q [u32],
    scores: &mut [u16],
) -> &'q [u32] {
    let (chunks, rest) = queries.as_chunks::<QUERIES>();
    for queries in chunks {
        subtract(words, queries, scores);
    }
    rest
}

/// Computes [`Codes::subtract_differing`] for one word of each code.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn subtract<const QUERIES: usize>(words: &[u32], queries: &[u32; QUERIES], scores: &mut [u16]) {
    for (score, word) in scores.iter_mut().zip(words) {
        let differing: u32 = queries.iter().map(|query| (query ^ word).count_ones()).sum();
        *score -= differing as u16;
    }
}
