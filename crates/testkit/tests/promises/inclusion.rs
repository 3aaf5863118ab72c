//! A pipeline draws tokens at their inclusion probabilities.

use vattention_testkit::promises::{PromiseHead, PromiseTrials, TOKENS, TRIALS, exceeds_rate};

use crate::case::Goal::Epsilon;
use crate::case::{BASE, ENDS, PromiseCase, TOP};

/// Draws samples of the initial size, and returns their expected size. Tests pairs of neighbours
/// too, if draws are `independent`.
///
/// # Panics
/// If a token, or a pair of neighbours, is drawn too often or too rarely.
fn expected_draws(selectors: &[&'static str], sampler: &'static str, independent: bool) -> f64 {
    let case = PromiseCase::new(&[], selectors, sampler, "'ratio', rounds = 1", &[]);
    let head = PromiseHead::Gaussian.data(1);
    let trials = PromiseTrials::with_data(head, &case.pipeline(Epsilon(0.9, 0.5)), 1);
    let (mut drawn, mut pairs) = (vec![0; TOKENS], vec![0; TOKENS]);
    let mut probability = vec![0.0; TOKENS];
    for sequence in 0..TRIALS {
        trials.read(sequence, |_, reading| {
            let list = reading.list(1);
            let mut last = usize::MAX - 1;
            for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
                let token = token as usize;
                drawn[token] += 1;
                probability[token] = f64::from(p);
                pairs[token] += usize::from(last + 1 == token);
                last = token;
            }
        });
    }
    let count = TRIALS as usize;
    let extreme = |events: usize, p: f64| {
        exceeds_rate(events, count, p) || exceeds_rate(count - events, count, 1.0 - p)
    };
    for token in 0..TOKENS {
        let p = probability[token];
        assert!(!extreme(drawn[token], p), "token {token}: {} for {p}", drawn[token]);
        if independent && token > 0 {
            let both = p * probability[token - 1];
            assert!(!extreme(pairs[token], both), "pair at {token}: {} for {both}", pairs[token]);
        }
    }
    probability.iter().filter(|&&p| p < 1.0).sum()
}

#[test]
fn priority_draws_at_its_probabilities_and_independently() {
    let expected = expected_draws(&[ENDS], "'priority'", true);
    assert!((expected / BASE as f64 - 1.0).abs() < 0.05, "expected sample size {expected}");
}

#[test]
fn stratified_draws_at_its_probabilities() {
    let expected = expected_draws(&[ENDS, TOP], "'stratified'", false);
    assert!((expected - BASE as f64).abs() < 1e-3, "expected sample size {expected}");
}
