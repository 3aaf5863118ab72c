//! Cut of `f32` scores, selected among the few scores that a guess leaves.

use multiversion::multiversion;

use super::sealed::{Cut, Cuts};
use super::{WORTH_GUESSING, for_each_bit, likely_ranks, mask_where, sample};

impl Cuts for f32 {
    fn cut(scores: &[Self], taken: &[u64], k: usize) -> Cut<Self> {
        let mut candidates = collect_at_least(scores, taken, guess(scores, taken, k));
        if candidates.len() <= k {
            candidates = collect_at_least(scores, taken, Self::NEG_INFINITY);
        }
        let (best, &mut next, _) = candidates.select_nth_unstable_by(k, |a, b| b.total_cmp(a));
        let least = best.iter().copied().reduce(Self::min);
        let equals = |least| best.iter().filter(|&&score| score == least).count();
        Cut { least: least.map(|least| (least, equals(least))), next: next + 0.0 }
    }
}

/// Guesses a score that more than `k` untaken scores likely reach, but not many more.
fn guess(scores: &[f32], taken: &[u64], k: usize) -> f32 {
    if scores.len() <= WORTH_GUESSING {
        return f32::NEG_INFINITY;
    }
    let mut sample = sample(scores, taken);
    let (_, many) = likely_ranks(k);
    if many >= sample.len() {
        return f32::NEG_INFINITY;
    }
    *sample.select_nth_unstable_by(many, |a, b| b.total_cmp(a)).1
}

/// Scores of untaken tokens that are at least `limit`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn collect_at_least(scores: &[f32], taken: &[u64], limit: f32) -> Vec<f32> {
    let mut found = Vec::new();
    for (scores, &word) in scores.chunks(64).zip(taken) {
        for_each_bit(mask_where(scores, |score| score >= limit) & !word, |bit| {
            found.push(scores[bit]);
        });
    }
    found
}
