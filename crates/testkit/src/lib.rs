//! What plug-ins must be, whoever wrote them: laws as plain functions, the heads to try them on,
//! and macros that turn them into tests.
//!
//! ```
//! use vattention_selectors::Sink;
//! use vattention_core::Size;
//!
//! // Makes a module `sink` with one test for each law.
//! vattention_testkit::laws!(sink, Sink { size: Size::Tokens(4) });
//! # fn main() {}
//! ```
//!
//! | law | demands |
//! |---|---|
//! | `round_trips` | a config that is written and read again is the same |
//! | `repeats` | asked twice, a selector picks the same |
//! | `grows` | tokens appended at once or in parts give the same picks |
//! | `forks` | a clone goes on as the original would, and leaves it alone |
//! | `adds` | what was picked before stays |
//! | `bounds` | a promised bound on untaken logits is true |
//! | `agrees` | every query head of a group picks the same, if `group_wide()` says so |
//! | `causal` | tokens that a row does not see change nothing of its picks |
//! | `evicts` | only live tokens are picked, and what is evicted never comes back |
//!
//! A sampler has laws of its own, and a macro, [`sampler_laws`](crate::sampler_laws!):
//!
//! | law | demands |
//! |---|---|
//! | `round_trips` | a config that is written and read again is the same |
//! | `repeats` | asked twice, a sampler draws the same |
//! | `grows` | tokens appended at once or in parts give the same draws |
//! | `forks` | a clone goes on as the original would, and leaves it alone |
//! | `causal` | tokens that a row does not see change nothing of its draws |
//! | `leaves` | what was taken is not drawn, and nothing is drawn twice |
//! | `nests` | a larger sample holds a smaller one, however it grew; the largest is everything |
//! | `answers` | each drawn token has a probability; if nothing is drawn, the newest token is read |
//! | `includes` | over many sequences, a token is drawn as often as it is said to be |
//! | `foretells` | over many sequences, the variance that is foretold of a total is that of its errors |
//!
//! And an estimator, [`estimator_laws`](crate::estimator_laws!):
//!
//! | law | demands |
//! |---|---|
//! | `round_trips` | a config that is written and read again is the same |
//! | `falls` | a radius is no negative number, and falls as a sample grows |
//! | `agrees` | a budget is the least size whose radius is epsilon |
//! | `scales` | weights that are all four times as large change nothing |
//! | `is_set` | what `tunable()` lets be set is what it then demands |
//! | `distrusts` | a statistic that is NaN makes no bar narrower and no budget smaller |
//! | `is_monotone` | a larger epsilon needs no more tokens, and a larger delta makes no wider bar |
//!
//! [`promise!`](crate::promise!) makes one test of a whole pipeline: whether it keeps what it promises
//! on every kind of head. Its selectors are shown a prompt and given feedback, and the test fails
//! if no sample is drawn on any kind of head.
//!
//! A law is a function of a selector's config and a [`Head`], so it can be called with a head of
//! one's own too. Cases have a fixed seed: the same on every run. `PROPTEST_CASES` makes more of
//! them, `PROPTEST_RNG_SEED` others.

pub mod adversarial;
pub mod estimator_laws;
mod head;
mod head_data;
pub mod laws;
pub mod promises;
mod run;
pub mod sampler_laws;

pub use estimator_laws::EstimatorLaw;
pub use head::{Head, Texture, heads};
pub use laws::{LAWS, Law, Verdict};
pub use run::{run, run_estimator, run_sampler};
pub use sampler_laws::SamplerLaw;

/// Makes a module of that name with one test for each law, on `cases` heads each (default 64).
#[macro_export]
macro_rules! laws {
    ($name:ident, $config:expr) => {
        $crate::laws!($name, $config, cases = 64);
    };
    ($name:ident, $config:expr, cases = $cases:expr) => {
        $crate::law_tests! {
            $name, |law| $crate::run(law, &$config, $cases), laws:
            round_trips, repeats, grows, forks, adds, bounds, agrees, causal, evicts
        }
    };
}

/// Makes a test of that name, which tries a pipeline on every kind of head
/// ([`promises::check`](crate::promises::check)): over 2,000 samples of each, what its certificates
/// say may not be contradicted at 1e-6, and on one kind at least a sample must be drawn. Some
/// minutes without optimisation.
#[macro_export]
macro_rules! promise {
    ($name:ident, $pipeline:expr) => {
        #[test]
        fn $name() {
            $crate::promises::check($pipeline);
        }
    };
}

/// Makes a module of that name with one test for each law of a sampler, on `cases` heads each
/// (default 32).
#[macro_export]
macro_rules! sampler_laws {
    ($name:ident, $config:expr) => {
        $crate::sampler_laws!($name, $config, cases = 32);
    };
    ($name:ident, $config:expr, cases = $cases:expr) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::law_tests! {
                on_heads, |law| $crate::run_sampler(law, &$config, $cases), sampler_laws:
                round_trips, repeats, grows, forks, causal, leaves, nests, answers
            }
            $crate::law_tests! {
                over_sequences, |law| law(&$config).unwrap(), sampler_laws: includes, foretells
            }
        }
    };
}

/// Makes a module of that name with one test for each law of an estimator, on what `cases` samples say
/// (default 256).
#[macro_export]
macro_rules! estimator_laws {
    ($name:ident, $estimator:expr) => {
        $crate::estimator_laws!($name, $estimator, cases = 256);
    };
    ($name:ident, $estimator:expr, cases = $cases:expr) => {
        $crate::law_tests! {
            $name, |law| $crate::run_estimator(law, &$estimator, $cases), estimator_laws:
            round_trips, falls, agrees, scales, is_set, distrusts, is_monotone
        }
    };
}

/// Makes a module with one test for each of some laws, which a closure is called with.
#[doc(hidden)]
#[macro_export]
macro_rules! law_tests {
    ($name:ident, |$law:ident| $run:expr, $laws:ident: $($test:ident),*) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $(
                #[test]
                fn $test() {
                    let $law = $crate::$laws::$test;
                    $run;
                }
            )*
        }
    };
}
