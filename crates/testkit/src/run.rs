//! Tests of a law on many heads.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use vattention_core::{Estimator, SampleStats, SamplerConfig, SelectorConfig};

use crate::estimator_laws::stats;
use crate::{EstimatorLaw, Head, Law, SamplerLaw, Texture, Verdict, heads};

/// Number of tokens of the largest head.
const MOST_TOKENS: usize = 200;

/// Heads of one, two and three tokens, which are rare among random heads.
fn smallest() -> impl Iterator<Item = Head> {
    let textures = [Texture::Flat, Texture::Gaussian, Texture::HeavyTail, Texture::Needle];
    (1..=3).flat_map(move |tokens| textures.map(|texture| Head::new(tokens, 2, 0, texture)))
}

/// Tests a law of selectors on the smallest heads and on `cases` others, the same on every run.
///
/// # Panics
/// If the law is violated, with the smallest head found that violates it.
pub fn run(law: Law, config: &dyn SelectorConfig, cases: u32) {
    on_heads(|head| law(config, head).map_err(|broken| format!("{config:?}: {broken}")), cases);
}

/// Tests a law of samplers on the smallest heads and on `cases` others, the same on every run.
///
/// # Panics
/// If the law is violated, with the smallest head found that violates it.
pub fn run_sampler(law: SamplerLaw, config: &dyn SamplerConfig, cases: u32) {
    on_heads(|head| law(config, head).map_err(|broken| format!("{config:?}: {broken}")), cases);
}

/// Tests a law of estimators on the statistics of `cases` samples, the same on every run.
///
/// # Panics
/// If the law is violated, with the simplest statistics found that violate it.
pub fn run_estimator(law: EstimatorLaw, estimator: &dyn Estimator, cases: u32) {
    let obeys = |stats: &SampleStats| {
        law(estimator, stats).map_err(|broken| format!("{estimator:?}: {broken}"))
    };
    on_cases(cases, &stats(), obeys);
}

/// Tests a law on heads, each of them without and with a soft cap and attention sinks.
fn on_heads(law: impl Fn(&Head) -> Verdict, cases: u32) {
    for head in smallest().flat_map(|head| [head.with_form(), head]) {
        if let Err(broken) = law(&head) {
            panic!("{broken}\nminimal failing input: {head:?}");
        }
    }
    on_cases(cases, &heads(MOST_TOKENS), |head| {
        law(head)?;
        let formed = head.with_form();
        law(&formed).map_err(|broken| format!("{broken}, on {formed:?}"))
    });
}

fn on_cases<S: Strategy>(cases: u32, strategy: &S, law: impl Fn(&S::Value) -> Verdict) {
    let from_environment = |name: &str| std::env::var(name).ok()?.parse().ok();
    let seed = from_environment("PROPTEST_RNG_SEED").unwrap_or(0x5EED);
    let settings = Config {
        cases: from_environment("PROPTEST_CASES").map_or(cases, |cases: u64| cases as u32),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    let law = |case: S::Value| law(&case).map_err(TestCaseError::fail);
    if let Err(error) = TestRunner::new(settings).run(strategy, law) {
        panic!("{error}");
    }
}
