//! Error bars: over 2,000 samples of a row, its error is larger than its bar no more often than delta
//! allows, at a level of 1e-6 for each count; for budgets, and where a limit does not suffice for epsilon.
//!
//! Bars are also made from a quarter of the variance, which the same count must find.

use std::sync::atomic::{AtomicUsize, Ordering};

use vattention::estimators::{Clt, Hoeffding, Mode, Ratio, SubGaussian, Terms};
use vattention::samplers::{LogitIndex, Priority, Stratified};
use vattention::selectors::OracleTopK;
use vattention::{
    PipelineConfig, Size, Target,
    plugin::{Estimator, SamplerConfig, Score, Uniform},
};

use vattention_testkit::promises::{
    CANCELLING, Counts, PromiseHead, TOKENS, TRIALS, contradicted, for_each, for_each_head,
};

use crate::common::draws::{FIRST, bench, fraction, only, ratio};
use crate::common::mistakes::QuarterOfTheVariance;

/// After an exact top-k: what a sample misses is then not much heavier than what it meets.
fn after_top_k(sampler: Box<dyn SamplerConfig>, estimator: Box<dyn Estimator>) -> PipelineConfig {
    let size = Size::Tokens(TOKENS / 20);
    let best = Box::new(OracleTopK { size, score: Score::Head });
    let mut config = only(sampler, estimator);
    config.selectors.push(best);
    config
}

fn samplers() -> [Box<dyn SamplerConfig>; 3] {
    let base = FIRST;
    [
        Box::new(Uniform { base }),
        Box::new(Priority { base, ..Priority::default() }),
        Box::new(Stratified { base }),
    ]
}

#[test]
fn bars_of_a_budget_are_as_sure_as_they_say() {
    let proved = AtomicUsize::new(0);
    for_each_head(|head| {
        for sampler in samplers() {
            for (size, delta) in [(200, 0.2), (400, 0.05)] {
                let name = sampler.typetag_name();
                let sized = || Ratio::sized(Size::Tokens(size), fraction(delta));
                let again = || {
                    let text = serde_json::to_value(&sampler).unwrap();
                    serde_json::from_value::<Box<dyn SamplerConfig>>(text).unwrap()
                };
                let run =
                    |estimator| -> Counts { bench(head, after_top_k(again(), estimator)).run() };
                let found = run(Box::new(sized()));
                let cell = format!("{head:?}, {name}, {size}, {delta}: {found:?}");
                println!("{cell}");
                assert!(!contradicted(found.outside, delta), "{cell}");
                assert!(found.radius.is_finite(), "{cell}");
                assert!(found.most_drawn <= 2 * size, "{cell}");
                if delta == 0.2 {
                    let quartered = run(Box::new(QuarterOfTheVariance(Box::new(sized()))));
                    let found = contradicted(quartered.outside, delta);
                    proved.fetch_add(usize::from(found), Ordering::Relaxed);
                }
            }
        }
    });
    let proved = proved.into_inner();
    assert!(proved >= 6, "only {proved} cells prove something");
}

/// Those of the other estimators, of the output by a uniform sample.
#[test]
fn every_estimator_says_what_a_budget_bought() {
    let (size, delta) = (Some(Size::Tokens(200)), fraction(0.2));
    let terms = || Terms { epsilon: None, size, ..Terms::new(Target::Sdpa, delta, delta) };
    for_each_head(|head| {
        let hoeffding =
            Hoeffding { epsilon: None, size, ..Hoeffding::new(Target::Denominator, delta, delta) };
        let all: [Box<dyn Estimator>; 3] =
            [Box::new(Clt(terms())), Box::new(SubGaussian(terms())), Box::new(hoeffding)];
        for estimator in all {
            let name = estimator.typetag_name();
            let found =
                bench(head, after_top_k(Box::new(Uniform { base: FIRST }), estimator)).run();
            println!("{head:?}, {name}: {found:?}");
            assert!(!contradicted(found.outside, delta.get()), "{head:?}, {name}: {found:?}");
            assert!(found.most_drawn <= 200, "{head:?}, {name}: {found:?}");
        }
    });
}

/// Of a limit that suffices for some heads only: the others say so, with bars that are as sure.
#[test]
fn what_a_limit_does_not_suffice_for_is_not_promised() {
    let (withheld, promised) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for_each_head(|head| {
        let (epsilon, delta, limit) = (0.05, 0.1, 300);
        for (mode, indexes) in [
            (Mode::Default, &[LogitIndex::Keys, LogitIndex::Codes][..]),
            (Mode::Rigorous, &[LogitIndex::Keys]),
        ] {
            let limited = || {
                let mut ratio = ratio(mode, epsilon, delta);
                ratio.limit = Some(Size::Tokens(limit));
                Box::new(ratio)
            };
            let by_attention =
                |&index: &LogitIndex| only(Box::new(Priority { base: FIRST, index }), limited());
            let uniform = after_top_k(Box::new(Uniform { base: FIRST }), limited());
            let strata = || after_top_k(Box::new(Stratified { base: FIRST }), limited());
            let strata = (mode == Mode::Default).then(strata);
            for config in indexes.iter().map(by_attention).chain([uniform]).chain(strata) {
                let sampler = config.sampler().typetag_name();
                let found = bench(head, config).run();
                let cell = format!("{head:?}, {sampler}, {mode:?}: {found:?}");
                println!("{cell}");
                assert!(!contradicted(found.violated, delta), "{cell}");
                assert!(!contradicted(found.outside, delta), "{cell}");
                assert!(found.most_drawn <= limit + limit / 2, "{cell}");
                let all = 2 * TRIALS as usize;
                withheld.fetch_add(usize::from(found.withheld == all), Ordering::Relaxed);
                promised.fetch_add(usize::from(found.withheld == 0), Ordering::Relaxed);
            }
        }
    });
    assert!(withheld.into_inner() >= 6 && promised.into_inner() >= 4);
}

/// A pipeline with a sampler; strata need scores.
fn sampled(sampler: Box<dyn SamplerConfig>, estimator: Box<dyn Estimator>) -> PipelineConfig {
    if sampler.typetag_name() == "stratified" {
        after_top_k(sampler, estimator)
    } else {
        only(sampler, estimator)
    }
}

/// Where values cancel, noise makes an estimate of the output longer than the output, and bars that are
/// relative to the estimate too narrow.
#[test]
fn bars_hold_where_values_cancel() {
    let size = Size::Tokens(200);
    for_each(&CANCELLING, |&head| {
        for delta in [0.02, 0.1, 0.3] {
            let terms = |target| Terms {
                epsilon: None,
                size: Some(size),
                ..Terms::new(target, fraction(delta), fraction(delta))
            };
            for sampler in samplers() {
                let estimators: [Box<dyn Estimator>; 3] = [
                    Box::new(Ratio::sized(size, fraction(delta))),
                    Box::new(Clt(terms(Target::Numerator))),
                    Box::new(Clt(terms(Target::Sdpa))),
                ];
                let name = sampler.typetag_name();
                for estimator in estimators {
                    let cell = format!("{head:?}, {name}, {}, {delta}", estimator.typetag_name());
                    let sampler = sampler.clone();
                    let found = bench(head, sampled(sampler, estimator)).run();
                    println!("{cell}: {found:?}");
                    assert!(!contradicted(found.outside, delta), "{cell}: {found:?}");
                }
            }
        }
    });
}

/// The other estimators, by uniform samples.
#[test]
fn bars_of_every_estimator_hold_where_values_cancel() {
    let size = Some(Size::Tokens(200));
    for_each(&CANCELLING, |&head| {
        for delta in [0.02, 0.1, 0.3] {
            let delta_of = fraction(delta);
            let terms =
                |target| Terms { epsilon: None, size, ..Terms::new(target, delta_of, delta_of) };
            let hoeffding = |target| Hoeffding {
                epsilon: None,
                size,
                ..Hoeffding::new(target, delta_of, delta_of)
            };
            let mut strict = Ratio::sized(Size::Tokens(200), delta_of);
            strict.mode = Mode::Strict;
            let all: [Box<dyn Estimator>; 6] = [
                Box::new(strict),
                Box::new(Clt(terms(Target::Denominator))),
                Box::new(SubGaussian(terms(Target::Sdpa))),
                Box::new(SubGaussian(terms(Target::Numerator))),
                Box::new(hoeffding(Target::Numerator)),
                Box::new(hoeffding(Target::Sdpa)),
            ];
            for estimator in all {
                let cell = format!("{head:?}, {estimator:?}");
                let found =
                    bench(head, after_top_k(Box::new(Uniform { base: FIRST }), estimator)).run();
                assert!(!contradicted(found.outside, delta), "{cell}: {found:?}");
            }
        }
    });
}

/// The bar of a row that holds its promise is at most epsilon, and the promise is kept.
#[test]
fn promises_are_kept_where_values_cancel() {
    let heads = [PromiseHead::Balanced, PromiseHead::Signs(0.1), PromiseHead::Signs(0.2)];
    for_each(&heads, |&head| {
        for (epsilon, delta) in [(0.3, 0.02), (0.9, 0.02), (0.9, 0.1), (0.9, 0.3)] {
            for sampler in samplers() {
                let cell = format!("{head:?}, {}, {epsilon}, {delta}", sampler.typetag_name());
                let config = sampled(sampler, Box::new(ratio(Mode::Default, epsilon, delta)));
                let trials = bench(head, config);
                let found = trials.run();
                println!("{cell}: {found:?}");
                assert!(!contradicted(found.violated, delta), "{cell}: {found:?}");
                for sequence in 0..50 {
                    trials.read(sequence, |_, reading| {
                        let certificate = reading.report(0).certificate;
                        let bar = certificate.bar.unwrap().radius;
                        assert!(
                            !certificate.held || bar <= epsilon * (1.0 + 1e-6),
                            "{cell}: {bar}"
                        );
                    });
                }
            }
        }
    });
}
