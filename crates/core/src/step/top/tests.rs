//! Comparison of the selection with a sort.

use proptest::prelude::*;

use crate::step::{Picks, Rank, top::STRIDE};

/// Picks of the `k` best by a sort, and the best score that remains.
fn pick_by_sorting<S: Rank>(picks: &Picks, k: usize, scores: &[S]) -> (Vec<u32>, Option<S>) {
    let mut rest: Vec<usize> = picks.residual().collect();
    rest.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).expect("scores are numbers"));
    let left = rest.get(k).map(|&token| scores[token]);
    let mut tokens = picks.indices();
    tokens.extend(rest.iter().take(k).map(|&token| token as u32));
    tokens.sort_unstable();
    (tokens, left)
}

fn check<S: Rank + std::fmt::Debug>(before: &Picks, k: usize, scores: &[S]) {
    let mut picks = before.clone();
    let left = picks.take_top(k, scores);
    let (tokens, expected) = pick_by_sorting(before, k, scores);
    assert!(picks.indices() == tokens, "k = {k} of {} scores", scores.len());
    assert_eq!(left, expected, "k = {k} of {} scores", scores.len());
    assert_eq!(picks.len(), tokens.len());
}

/// Checks both number types, at every `k` that is special for these picks.
fn check_all(before: &Picks, scores: &[u16]) {
    let floats: Vec<f32> = scores.iter().map(|&score| f32::from(score) - 300.0).collect();
    let rest = before.visible() - before.len();
    for k in [0, 1, 2, rest / 20, rest / 2, rest.saturating_sub(1), rest, rest + 1] {
        check(before, k, scores);
        check(before, k, &floats);
    }
}

#[derive(Clone, Copy, Debug)]
enum Pattern {
    Random,
    Few,
    Equal,
    Extremes,
    Rising,
    Falling,
    /// All scores in a sample are equal, and differ from the other scores.
    Misleading,
}

fn score(pattern: Pattern, token: usize, n: usize, seed: u64) -> u16 {
    let random = (token as u64 + 1 + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    match pattern {
        Pattern::Random => random as u16,
        Pattern::Few => random.count_ones() as u16,
        Pattern::Equal => seed as u16,
        Pattern::Extremes => {
            if random.is_multiple_of(2) {
                0
            } else {
                u16::MAX
            }
        }
        Pattern::Rising => (token * 60_000 / n) as u16,
        Pattern::Falling => (60_000 - token * 60_000 / n) as u16,
        Pattern::Misleading if token.is_multiple_of(16) => {
            if seed.is_multiple_of(2) {
                0
            } else {
                u16::MAX
            }
        }
        Pattern::Misleading => 1000 + random as u16 % 50,
    }
}

const PATTERNS: [Pattern; 7] = [
    Pattern::Random,
    Pattern::Few,
    Pattern::Equal,
    Pattern::Extremes,
    Pattern::Rising,
    Pattern::Falling,
    Pattern::Misleading,
];

/// Initial picks: none, or one of four patterns.
fn initial_picks(n: usize, variant: usize) -> Picks {
    let mut picks = Picks::new(n);
    match variant {
        1 => {
            picks.take_range(0..n / 5);
            picks.take_range(n - n / 7..n);
        }
        2 => picks.take_all((0..n).filter(|token| token % 3 == 1)),
        3 => picks.take_all((0..n).filter(|token| token % 16 == 0)),
        4 => picks.take_range(0..n),
        _ => {}
    }
    picks
}

/// Among equal scores the lower token is picked first (rule 1), and `k` counts only tokens that are
/// not picked yet (rule 2).
#[test]
fn ties_go_to_the_lower_token() {
    let mut picks = Picks::new(100);
    picks.take(3);
    let mut scores = [1.0_f32; 100];
    scores[50] = 2.0;
    assert_eq!(picks.take_top(5, &scores), Some(1.0));
    assert_eq!(picks.indices(), [0, 1, 2, 3, 4, 50]);
    assert_eq!(Picks::new(4).take_top(9, &[0.0_f32; 4]), None);
    let mut zeros = Picks::new(3);
    zeros.take_top(1, &[-0.0_f32, 0.0, -0.0]);
    assert_eq!(zeros.indices(), [0], "-0 and 0 are equal");
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..ProptestConfig::default()
    })]
    #[test]
    fn selection_equals_a_sort(
        pattern in prop::sample::select(PATTERNS.to_vec()),
        words in prop::sample::select(vec![0_usize, 1, 2, 63, 64, 65, 100]),
        around in 0_usize..130,
        variant in 0_usize..5,
        seed in 0_u64..1000,
    ) {
        let n = (words * 64 + around).saturating_sub(65);
        let scores: Vec<u16> = (0..n).map(|token| score(pattern, token, n, seed)).collect();
        check_all(&initial_picks(n, variant), &scores);
    }
}

/// The guess fails if the sample is misleading, and the result is right nevertheless.
#[test]
fn selection_from_many_scores_of_every_pattern() {
    for pattern in PATTERNS {
        for variant in 0..5 {
            for seed in [2, 3] {
                let n = 20_011;
                let scores: Vec<u16> = (0..n).map(|token| score(pattern, token, n, seed)).collect();
                check_all(&initial_picks(n, variant), &scores);
            }
        }
    }
}

/// Exactly `k` scores reach the guess, or one more, or one fewer.
#[test]
fn guesses_that_just_suffice_or_fail() {
    let n = 8192;
    let sampled = |token: usize| token.is_multiple_of(STRIDE);
    let mut scores = vec![1_u16; n];
    let best = (0..n).filter(|&token| sampled(token)).take(100);
    for token in best.chain((0..n).filter(|&token| !sampled(token)).take(1500)) {
        scores[token] = 9;
    }
    let floats: Vec<f32> = scores.iter().copied().map(f32::from).collect();
    for k in 1599..=1601 {
        check(&Picks::new(n), k, &scores);
        check(&Picks::new(n), k, &floats);
    }
}
