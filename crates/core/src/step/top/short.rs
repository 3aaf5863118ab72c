//! The cut of small whole numbers: bisected, by counting.

use multiversion::multiversion;

use super::sealed::{Cut, Cuts};
use super::{WORTH_GUESSING, each_bit, likely_ranks, sample};

impl Cuts for u16 {
    fn cut(scores: &[Self], taken: &[u64], k: usize) -> Cut<Self> {
        let untaken = Untaken { scores, excluded: excluded(scores, taken) };
        let guess = Guess::new(scores, taken);
        let best = |k| untaken.bisect(k, guess.bracket(k));
        if k == 0 {
            return Cut { least: None, next: best(1).score };
        }
        let RankPlace { score, reached, above } = best(k);
        let next = if reached > k { score } else { best(k + 1).score };
        Cut { least: Some((score, k - above)), next }
    }
}

/// Scores to be counted, but for some of them.
struct Untaken<'a> {
    scores: &'a [u16],
    excluded: Vec<u16>,
}

impl Untaken<'_> {
    /// How many are at least `limit`.
    fn at_least(&self, limit: u32) -> usize {
        count(self.scores, limit) - count(&self.excluded, limit)
    }

    /// The `k`-th best score. There are `k` or more.
    ///
    /// `bracket` is where to look first, from a limit that `k` scores reach to one that fewer do;
    /// if it is not so, everywhere is looked.
    fn bisect(&self, k: usize, (low, high): (u32, u32)) -> RankPlace {
        let (mut low, mut reached) = (low, self.at_least(low));
        if reached < k {
            (low, reached) = (0, self.at_least(0));
        }
        let (mut high, mut above) = (high, self.at_least(high));
        if above >= k {
            (high, above) = (LIMIT, 0);
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            match self.at_least(middle) {
                count if count < k => (high, above) = (middle, count),
                count => (low, reached) = (middle, count),
            }
        }
        RankPlace { score: low as u16, reached, above }
    }
}

/// A score, how many are at least that, and how many exceed it.
struct RankPlace {
    score: u16,
    reached: usize,
    above: usize,
}

/// No score reaches it.
const LIMIT: u32 = 1 << 16;

/// What a sample says of all scores.
struct Guess(Option<Vec<u16>>);

impl Guess {
    fn new(scores: &[u16], taken: &[u64]) -> Self {
        Self((scores.len() > WORTH_GUESSING).then(|| sample(scores, taken)))
    }

    /// Limits between which the `k`-th best score likely lies.
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

/// The scores of the tokens that are taken.
fn excluded(scores: &[u16], taken: &[u64]) -> Vec<u16> {
    let mut excluded = Vec::new();
    for (scores, &word) in scores.chunks(64).zip(taken) {
        each_bit(word, |bit| excluded.push(scores[bit]));
    }
    excluded
}

/// How many scores are at least `limit`.
fn count(scores: &[u16], limit: u32) -> usize {
    match u16::try_from(limit) {
        Ok(0) => scores.len(),
        Ok(limit) => count_above(scores, limit - 1),
        Err(_) => 0,
    }
}

/// How many scores exceed `than`. The sums fit the scores' own type, so that as many are added at a
/// time as are compared.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn count_above(scores: &[u16], than: u16) -> usize {
    let mut count = 0;
    for part in scores.chunks(4096) {
        let mut above = 0_u16;
        for &score in part {
            above += u16::from(score > than);
        }
        count += usize::from(above);
    }
    count
}
