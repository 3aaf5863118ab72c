//! Trying a law on many heads.

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use vattention_core::SelectorConfig;

use crate::{Head, Law, Texture, heads};

/// The largest head that is tried.
const MOST_TOKENS: usize = 200;

/// Heads of one, two and three tokens, which random ones seldom are.
fn smallest() -> impl Iterator<Item = Head> {
    let textures = [Texture::Flat, Texture::Gaussian, Texture::HeavyTail, Texture::Needle];
    (1..=3).flat_map(move |tokens| textures.map(|texture| Head::new(tokens, 2, 0, texture)))
}

/// Tries a law on the smallest heads and on `cases` others, the same on every run.
///
/// # Panics
/// If the law is broken, with the smallest head on which it is.
pub fn run(law: Law, config: &dyn SelectorConfig, cases: u32) {
    for head in smallest() {
        if let Err(broken) = law(config, &head) {
            panic!("{config:?}: {broken}\nminimal failing input: {head:?}");
        }
    }
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
