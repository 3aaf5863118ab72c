//! Trying a law on many heads.

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use vattention_core::SelectorConfig;

use crate::{Law, heads};

/// The largest head that is tried.
const MOST_TOKENS: usize = 200;

/// Tries a law on `cases` heads, the same on every run.
///
/// # Panics
/// If the law is broken, with the smallest head on which it is.
pub fn run(law: Law, config: &dyn SelectorConfig, cases: u32) {
    let from_environment = |name: &str| std::env::var(name).ok()?.parse().ok();
    let seed = from_environment("PROPTEST_RNG_SEED").unwrap_or(0x5EED);
    let settings = Config {
        cases: from_environment("PROPTEST_CASES").map_or(cases, |cases: u64| cases as u32),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    let result = TestRunner::new(settings)
        .run(&heads(MOST_TOKENS), |head| law(config, &head).map_err(TestCaseError::fail));
    if let Err(error) = result {
        panic!("{config:?}: {error}");
    }
}
