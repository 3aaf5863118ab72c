//! The promise of a `stratified` sample: over 2,000 samples of a row, the output's error exceeds epsilon
//! no more often than delta allows, at a level of 1e-6 for each count; tokens are drawn as often as
//! they are said to be; and few more of them than a uniform sample needs, or fewer.
//!
//! Where values change their sign along the sequence, all strata but a few are constant: draws of a
//! stratum that are alike then hide its variance, which only the neighbouring strata reveal.
//!
//! The sampler is also run with mistakes, which the same count must find.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vattention::estimators::{Mode, Ratio};
use vattention::experiments::binomial;
use vattention::samplers::Stratified;
use vattention::selectors::OracleTopK;
use vattention::{
    PipelineConfig, Share, Size,
    plugin::{Estimator, SamplerConfig, Score, Uniform},
};

use vattention_testkit::promises::{
    LEVEL, PromiseHead, PromiseTrials, SignChanges, TOKENS, TRIALS, contradicted, for_each_head,
};

use crate::common::draws::{BASE, ENDS, FIRST, bench, only, ratio};
use crate::common::mistakes::QuarterOfTheVariance;

/// The best tokens, then what there is for the rest.
fn after_top_k(rest: PipelineConfig) -> PipelineConfig {
    let size = Size::Tokens(TOKENS / 20);
    let best = Box::new(OracleTopK { size, score: Score::Head });
    let mut config = rest;
    config.selectors.insert(0, best);
    config
}

fn stratified() -> Box<dyn SamplerConfig> {
    Box::new(Stratified { base: FIRST })
}

#[test]
fn the_promise_is_kept_with_few_more_tokens_than_a_uniform_sample_needs() {
    let (proved, gained) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for_each_head(|head| {
        for (epsilon, delta) in [(0.1, 0.1), (0.1, 0.2), (0.05, 0.05)] {
            let ratio = || -> Box<Ratio> { Box::new(ratio(Mode::Default, epsilon, delta)) };
            let run = |sampler, estimator: Box<dyn Estimator>| {
                bench(head, after_top_k(only(sampler, estimator))).run()
            };
            let found = run(stratified(), ratio());
            let cell = format!("{head:?}, {epsilon}, {delta}: {found:?}");
            assert!(!contradicted(found.violated, delta), "{cell}");
            assert!(found.unheld <= TRIALS as usize / 20, "{cell}");
            let uniform = run(Box::new(Uniform { base: FIRST }), ratio());
            println!("{cell} {uniform:?}");
            let [ours, uniforms] = [&found, &uniform].map(|of| of.read - ENDS as f64);
            assert!(ours <= 1.15 * uniforms, "{cell}, uniform {uniform:?}");
            let much = ours <= 0.8 * uniforms;
            gained.fetch_add(usize::from(much), Ordering::Relaxed);
            if delta == 0.2 {
                let violated = run(stratified(), Box::new(QuarterOfTheVariance(ratio()))).violated;
                let found = binomial::p_value(violated, TRIALS as usize, delta) < LEVEL;
                proved.fetch_add(usize::from(found), Ordering::Relaxed);
            }
        }
    });
    assert!(gained.into_inner() >= 3, "strata gain too little");
    assert!(proved.into_inner() >= 2, "a quarter of the variance is not found");
}

/// Tokens at which values change their sign: inside a stratum, near to its ends, several times, and
/// near to the ends of the sequence.
const CHANGES: [&[usize]; 7] =
    [&[1500], &[1544], &[1624], &[700, 2100], &[500, 950, 1400, 1850, 2300], &[310], &[2690]];

#[test]
fn the_promise_is_kept_where_values_change_along_the_sequence() {
    let (epsilon, delta) = (0.1, 0.1);
    for changes in CHANGES {
        for (mean, spread) in [(0.05, 0.0), (0.2, 0.0), (0.2, 0.5)] {
            let head = PromiseHead::SignChanges(SignChanges { changes, mean, spread });
            let ratio = Box::new(ratio(Mode::Default, epsilon, delta));
            let found = bench(head, after_top_k(only(stratified(), ratio))).run();
            println!("{head:?}: {found:?}");
            assert!(!contradicted(found.violated, delta), "{head:?}: {found:?}");
            // Where everything is read, nothing is tested.
            assert!(mean < 0.1 || found.exact < TRIALS as usize, "{head:?}: {found:?}");
        }
    }
}

/// One list for two query heads, whose logits are independent of each other, keeps the promise of each.
#[test]
fn a_shared_list_keeps_each_heads_promise() {
    for_each_head(|head| {
        let config = after_top_k(only(stratified(), Box::new(ratio(Mode::Default, 0.1, 0.1))));
        assert_eq!(config.share, Share::Group);
        let found = PromiseTrials::new(head, &Arc::new(config)).run();
        println!("{head:?}: {found:?}");
        assert!(!contradicted(found.violated, 0.1), "{head:?}: {found:?}");
    });
}

/// With one look at few tokens, each token of the rest is drawn as often as its probability says.
#[test]
fn tokens_are_drawn_with_the_probability_that_is_told() {
    let mut once = ratio(Mode::Default, 0.9, 0.5);
    once.rounds = std::num::NonZeroU8::MIN;
    let config = after_top_k(only(stratified(), Box::new(once)));
    let bench = bench(PromiseHead::Gaussian, config);
    let (mut drawn, mut told) = (vec![0; TOKENS], vec![0.0; TOKENS]);
    for sequence in 0..TRIALS {
        bench.read(sequence, |_, reading| {
            let list = reading.list(1);
            for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
                drawn[token as usize] += 1;
                told[token as usize] = f64::from(p);
            }
        });
    }
    let trials = TRIALS as usize;
    for (token, (&drawn, &p)) in drawn.iter().zip(&told).enumerate() {
        let more = binomial::p_value(drawn, trials, p);
        let less = binomial::p_value(trials - drawn, trials, 1.0 - p);
        let level = LEVEL / TOKENS as f64;
        assert!(more.min(less) >= level, "token {token}: {drawn} for {p}");
    }
    let expected: f64 = told.iter().filter(|&&p| p < 1.0).sum();
    assert!((expected - BASE as f64).abs() < 1e-3, "{expected} are expected");
}
