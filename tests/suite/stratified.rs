//! The promise of a `stratified` sample: over 2,000 samples of a row, the output's error exceeds epsilon
//! no more often than delta allows, at a level of 1e-6 for each count; tokens are drawn as often as
//! they are said to be; and no more of them than a uniform sample needs.
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
    plugin::{AutoSize, BudgetEstimator, SamplerConfig, Score, Uniform},
};

use vattention_testkit::promises::{
    LEVEL, PromiseHead, PromiseTrials, TOKENS, TRIALS, contradicted, for_each_head,
};

use crate::common::draws::{BASE, ENDS, FIRST, bench, only, ratio};
use crate::common::mistakes::QuarterOfTheVariance;

/// The best tokens, then what there is for the rest.
fn after_top_k(rest: PipelineConfig) -> PipelineConfig {
    let size = AutoSize::Fixed(Size::Tokens(TOKENS / 20));
    let best = Box::new(OracleTopK { size, score: Score::Head });
    let mut config = rest;
    config.selectors.insert(0, best);
    config
}

fn stratified() -> Box<dyn SamplerConfig> {
    Box::new(Stratified { base: FIRST })
}

#[test]
fn the_promise_is_kept_with_no_more_tokens_than_a_uniform_sample_needs() {
    let (proved, gained) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for_each_head(|head| {
        for (epsilon, delta) in [(0.1, 0.1), (0.1, 0.2), (0.05, 0.05)] {
            let ratio = || -> Box<Ratio> { Box::new(ratio(Mode::Default, epsilon, delta)) };
            let run = |sampler, estimator: Box<dyn BudgetEstimator>| {
                bench(head, after_top_k(only(sampler, estimator))).run()
            };
            let found = run(stratified(), ratio());
            let cell = format!("{head:?}, {epsilon}, {delta}: {found:?}");
            assert!(!contradicted(found.violated, delta), "{cell}");
            assert!(found.unheld <= TRIALS as usize / 20, "{cell}");
            let uniform = run(Box::new(Uniform { base: FIRST }), ratio());
            println!("{cell} {uniform:?}");
            let [ours, uniforms] = [&found, &uniform].map(|of| of.read - ENDS as f64);
            assert!(ours <= 1.05 * uniforms, "{cell}, uniform {uniform:?}");
            let much = ours <= 0.8 * uniforms;
            gained.fetch_add(usize::from(much), Ordering::Relaxed);
            if delta == 0.2 {
                let violated = run(stratified(), Box::new(QuarterOfTheVariance(ratio()))).violated;
                let found = binomial::p_value(violated, TRIALS as usize, delta) < LEVEL;
                proved.fetch_add(usize::from(found), Ordering::Relaxed);
            }
        }
    });
    assert!(gained.into_inner() >= 4, "strata gain too little");
    assert!(proved.into_inner() >= 2, "a quarter of the variance is not found");
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
