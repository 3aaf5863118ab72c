//! Levels of equal size by falling score, without sorting all scores.
//!
//! Scores are counted in buckets of equal width. Each level ends within one bucket, and the level's
//! last score is selected among the few scores of this bucket.

use multiversion::multiversion;
use vattention_core::{Picks, step::largest};

/// Number of levels.
pub(super) const LEVELS: usize = 8;

/// Number of buckets; the last one also holds the tokens that are picked.
const BUCKETS: usize = 1024;

/// Ends of all levels but the last. Tokens are ordered by falling score, equal scores by position.
pub(super) struct Levels {
    /// Least score of the levels up to this one.
    least: [f32; LEVELS - 1],
    /// Number of tokens with the least score in the levels up to this one.
    equals: [usize; LEVELS - 1],
    /// Number of tokens with the least score of each level that were placed so far.
    placed: [usize; LEVELS],
    /// Largest score of a token that is not picked.
    pub(super) most: f32,
}

impl Levels {
    /// Computes the levels of the tokens that are not picked from their scores, `[visible]`.
    pub(super) fn new(picks: &Picks, scores: &[f32]) -> Self {
        let left = picks.visible() - picks.len();
        let masked = mask_picked(scores, picks.words());
        let most = largest(&masked);
        let assigned = assign_buckets(&masked, most);
        let mut counts = [0_usize; BUCKETS];
        for &bucket in &assigned {
            counts[usize::from(bucket)] += 1;
        }

        // The bucket in which each level ends, and the number of scores in the buckets before it.
        let mut ends = [(0, 0); LEVELS - 1];
        let (mut bucket, mut before) = (0, 0);
        for (level, end) in ends.iter_mut().enumerate() {
            let count = part(left, LEVELS, level).end;
            while before + counts[bucket] < count {
                before += counts[bucket];
                bucket += 1;
            }
            *end = (bucket, before);
        }
        // The first level that ends in each bucket; `u8::MAX` for buckets in which no level ends.
        // The scores of the other buckets are gathered.
        let mut first_level = [u8::MAX; BUCKETS];
        for (level, &(bucket, _)) in ends.iter().enumerate().rev() {
            first_level[bucket] = level as u8;
        }
        let mut gathered: [Vec<f32>; LEVELS - 1] = Default::default();
        for (&score, &bucket) in masked.iter().zip(&assigned) {
            if let Some(scores) = gathered.get_mut(usize::from(first_level[usize::from(bucket)])) {
                scores.push(score);
            }
        }

        let mut levels =
            Self { least: [f32::INFINITY; _], equals: [0; _], placed: [0; LEVELS], most };
        for (level, (bucket, before)) in ends.into_iter().enumerate() {
            let count = part(left, LEVELS, level).end - before;
            if count > 0 {
                let scores = &mut gathered[usize::from(first_level[bucket])];
                let least = *scores.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1;
                let above = scores.iter().filter(|&&score| score > least).count();
                (levels.least[level], levels.equals[level]) = (least, count - above);
            }
        }
        levels
    }

    /// Number of levels that end above each score, `[visible]`.
    pub(super) fn count_above(&self, scores: &[f32]) -> Vec<u8> {
        count_levels_above(&self.least, scores)
    }

    /// Returns the level of the next token, given its score and the number of levels that end
    /// `above` the score. Tokens must be placed in ascending order.
    pub(super) fn place(&mut self, score: f32, above: u8) -> usize {
        let first = usize::from(above);
        let mut level = first;
        if level < LEVELS - 1 && score == self.least[level] {
            while level < LEVELS - 1
                && score == self.least[level]
                && self.placed[first] >= self.equals[level]
            {
                level += 1;
            }
            self.placed[first] += 1;
        }
        level
    }
}

/// Scores `[visible]`, with −∞ for the tokens whose bit in `taken` is set.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn mask_picked(scores: &[f32], taken: &[u64]) -> Vec<f32> {
    let mut masked = scores.to_vec();
    for (scores, &word) in masked.chunks_mut(64).zip(taken) {
        for (i, score) in scores.iter_mut().enumerate() {
            *score = if word >> i & 1 == 1 { f32::NEG_INFINITY } else { *score };
        }
    }
    masked
}

/// Bucket of each score; larger scores are in lower buckets. No score exceeds `most`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn assign_buckets(scores: &[f32], most: f32) -> Vec<u16> {
    let mut least = [most; 16];
    for chunk in scores.chunks(16) {
        for (least, &score) in least.iter_mut().zip(chunk) {
            let lower = score < *least && score > f32::NEG_INFINITY;
            *least = if lower { score } else { *least };
        }
    }
    let least = least.into_iter().fold(most, f32::min);
    // All scores may be equal.
    let width = (most - least).max(f32::MIN_POSITIVE);
    let per_unit = (BUCKETS - 1) as f32 / width;
    let mut buckets = vec![0; scores.len()];
    for (bucket, &score) in buckets.iter_mut().zip(scores) {
        let position = ((most - score) * per_unit) as i32;
        *bucket = if position < BUCKETS as i32 { position as u16 } else { (BUCKETS - 1) as u16 };
    }
    buckets
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn count_levels_above(least: &[f32; LEVELS - 1], scores: &[f32]) -> Vec<u8> {
    let mut above = vec![0; scores.len()];
    for (above, &score) in above.iter_mut().zip(scores) {
        let mut count = 0;
        for &least in least {
            count += u8::from(score < least);
        }
        *above = count;
    }
    above
}

/// Range of the `i`-th of `parts` nearly equal parts of `0..len`.
pub(super) fn part(len: usize, parts: usize, i: usize) -> std::ops::Range<usize> {
    i * len / parts..(i + 1) * len / parts
}
