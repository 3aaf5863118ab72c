//! Cut of `u16` scores, found by bisection and counting.

use multiversion::multiversion;

use super::sealed::{Cut, Cuts};
use super::{WORTH_GUESSING, for_each_bit, likely_ranks, sample};

impl Cuts for u16 {
    fn cut(scores: &[Self], taken: &[u64], k: usize) -> Cut<Self> {
        let untaken = Untaken { scores, excluded: excluded(scores, taken) };
        let guess = Guess::new(scores, taken);
        let best = |k| untaken.bisect(k, guess.bracket(k));
        if k == 0 {
            return Cut { least: None, next: best(1).score };
        }
        let KthBest { score, reached, above } = best(k);
        let next = if reached > k { score } else { best(k + 1).score };
        Cut { least: Some((score, k - above)), next }
    }
}

/// Scores of untaken tokens: all scores without some excluded ones.
struct Untaken<'a> {
    scores: &'a [u16],
    excluded: Vec<u16>,
}

impl Untaken<'_> {
    /// Number of scores that are at least `limit`.
    fn count_at_least(&self, limit: u32) -> usize {
        count(self.scores, limit) - count(&self.excluded, limit)
    }

    /// Finds the `k`-th best score. There are at least `k` scores.
    ///
    /// The bracket `(low, high)` is a guess: at least `k` scores should reach `low`, and fewer than
    /// `k` should reach `high`. If the guess is wrong, the search extends to all scores.
    fn bisect(&self, k: usize, (low, high): (u32, u32)) -> KthBest {
        let (mut low, mut reached) = (low, self.count_at_least(low));
        if reached < k {
            (low, reached) = (0, self.count_at_least(0));
        }
        let (mut high, mut above) = (high, self.count_at_least(high));
        if above >= k {
            (high, above) = (LIMIT, 0);
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            match self.count_at_least(middle) {
                count if count < k => (high, above) = (middle, count),
                count => (low, reached) = (middle, count),
            }
        }
        KthBest { score: low as u16, reached, above }
    }
}

/// The `k`-th best score, the number of scores that are at least as large, and the number of larger
/// scores.
struct KthBest {
    score: u16,
    reached: usize,
    above: usize,
}

/// Limit that no score reaches.
const LIMIT: u32 = 1 << 16;

/// Sample of the scores, from which cuts are guessed; `None` if there are few scores.
struct Guess(Option<Vec<u16>>);

impl Guess {
    fn new(scores: &[u16], taken: &[u64]) -> Self {
        Self((scores.len() > WORTH_GUESSING).then(|| sample(scores, taken)))
    }

    /// Guesses limits between which the `k`-th best score lies.
    fn bracket(&self, k: usize) -> (u32, u32) {
        let Some(sample) = &self.0 else { return (0, LIMIT) };
        let (few, many) = likely_ranks(k);
        let untaken = Untaken { scores: sample, excluded: Vec::new() };
        let top = sample.iter().max().map_or(0, |&best| u32::from(best) + 1);
        let reached_by = |rank| untaken.bisect(rank, (0, top)).score;
        let low = if many <= sample.len() { reached_by(many) } else { 0 };
        let high =
            if 0 < few && few <= sample.len() { u32::from(reached_by(few)) + 1 } else { top };
        (u32::from(low), high)
    }
}

/// Scores of taken tokens.
fn excluded(scores: &[u16], taken: &[u64]) -> Vec<u16> {
    let mut excluded = Vec::new();
    for (scores, &word) in scores.chunks(64).zip(taken) {
        for_each_bit(word, |bit| excluded.push(scores[bit]));
    }
    excluded
}

/// Number of scores that are at least `limit`.
fn count(scores: &[u16], limit: u32) -> usize {
    match u16::try_from(limit) {
        Ok(0) => scores.len(),
        Ok(limit) => count_above(scores, limit - 1),
        Err(_) => 0,
    }
}

/// Number of scores that exceed `limit`. Partial sums have the type of the scores, so that a vector
/// instruction adds as many numbers as it compares.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn count_above(scores: &[u16], limit: u16) -> usize {
    let mut count = 0;
    for part in scores.chunks(4096) {
        let mut above = 0_u16;
        for &score in part {
            above += u16::from(score > limit);
        }
        count += usize::from(above);
    }
    count
}
