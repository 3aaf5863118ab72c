//! Laws that every plug-in must obey: plain functions, heads to test them on, and macros that turn
//! them into tests.
//!
//! ```
//! use vattention_selectors::Sink;
//! use vattention_core::Size;
//!
//! // Creates a module `sink` with one test for each law.
//! vattention_testkit::laws!(sink, Sink { size: Size::Tokens(4) });
//! # fn main() {}
//! ```
//!
//! | law | demands |
//! |---|---|
//! | `round_trips` | a config stays the same if it is written and read again |
//! | `repeats` | a selector picks the same tokens for the same query again |
//! | `grows` | picks do not depend on the number of calls that append the tokens |
//! | `forks` | a clone picks the same tokens as the original, and does not change it |
//! | `adds` | earlier picks of other selectors stay |
//! | `bounds` | the logits of all other tokens are at most the promised bound |
//! | `agrees` | all query heads of a group get the same picks, if `group_wide()` is true |
//! | `causal` | picks do not depend on tokens that are not visible |
//! | `evicts` | only live tokens are picked, and an evicted token stays evicted |
//! | `truncates` | removed tokens leave no trace, if `can_truncate()` is true |
//! | `shares` | without a sharing obstacle, a clone serves any sequence with the same tokens |
//! | `adjusts` | `adjustable()` sets what the config sets, and no index depends on it |
//!
//! Samplers have other laws, and the macro [`sampler_laws`](crate::sampler_laws!):
//!
//! | law | demands |
//! |---|---|
//! | `round_trips` | a config stays the same if it is written and read again |
//! | `repeats` | a sampler draws the same tokens for the same query again |
//! | `grows` | draws do not depend on the number of calls that append the tokens |
//! | `forks` | a clone draws the same tokens as the original, and does not change it |
//! | `causal` | draws do not depend on tokens that are not visible |
//! | `truncates` | removed tokens leave no trace, if `can_truncate()` is true |
//! | `shares` | without a sharing obstacle, a clone serves any sequence with the same tokens |
//! | `excludes` | picked tokens are not drawn, and no token is drawn twice |
//! | `nests` | a larger sample contains a smaller one; the largest contains all tokens |
//! | `covers` | drawn tokens have probabilities; without draws, the newest token is read |
//! | `includes` | over many sequences, tokens are drawn at their inclusion probabilities |
//! | `predicts` | over many sequences, a total has the predicted variance |
//!
//! Estimators have the macro [`estimator_laws`](crate::estimator_laws!):
//!
//! | law | demands |
//! |---|---|
//! | `round_trips` | a config stays the same if it is written and read again |
//! | `falls` | a radius is not negative, and falls as the sample grows |
//! | `agrees` | a budget is the least size whose radius is at most epsilon |
//! | `scales` | a common factor of all weights changes nothing |
//! | `is_set` | the estimator demands the values that were set by `tunable()` |
//! | `distrusts` | a statistic that is NaN makes no bar narrower and no budget smaller |
//! | `is_monotone` | a larger epsilon needs no more tokens; a larger delta makes no wider bar |
//!
//! [`promise!`](crate::promise!) creates one test of a whole pipeline: it must keep its promise on
//! every kind of head. Its selectors observe a prompt and get feedback, and the test fails if no
//! sample is drawn on any kind of head.
//!
//! A law is a function of a plug-in's config and a [`Head`], so it can be called with other heads
//! too. Cases have a fixed seed. `PROPTEST_CASES` sets their number, `PROPTEST_RNG_SEED` the seed.

pub mod adversarial;
pub mod estimator_laws;
mod head;
mod head_data;
mod head_form;
pub mod laws;
pub mod promises;
mod requirement;
mod run;
pub mod sampler_laws;
mod sharing;
mod verdict;

pub use estimator_laws::EstimatorLaw;
pub use head::{Head, Texture, heads};
pub use head_form::HeadForm;
pub use laws::{LAWS, Law};
pub use requirement::or_skip;
pub use run::{run, run_estimator, run_sampler};
pub use sampler_laws::SamplerLaw;
pub use verdict::Verdict;

/// Creates a module with one test for each law of a selector, on `cases` heads each (default 64).
#[macro_export]
macro_rules! laws {
    ($name:ident, $config:expr) => {
        $crate::laws!($name, $config, cases = 64);
    };
    ($name:ident, $config:expr, cases = $cases:expr) => {
        $crate::law_tests! {
            $name, |law| $crate::run(law, &$config, $cases), laws:
            round_trips, repeats, grows, forks, adds, bounds, agrees, causal, evicts,
            truncates, shares, adjusts
        }
    };
}

/// Creates a test of a pipeline's promise on every kind of head
/// ([`promises::check`](crate::promises::check)).
///
/// The errors of 2,000 samples of each kind may not contradict the certificates at a significance
/// level of 1e-6, and a sample must be drawn on at least one kind. Without optimization, the test
/// takes some minutes.
#[macro_export]
macro_rules! promise {
    ($name:ident, $pipeline:expr) => {
        #[test]
        fn $name() {
            $crate::promises::check($pipeline);
        }
    };
}

/// Creates a module with one test for each law of a sampler, on `cases` heads each (default 32).
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
                round_trips, repeats, grows, forks, causal, truncates, shares, excludes,
                nests, covers
            }
            $crate::law_tests! {
                over_sequences, |law| law(&$config).unwrap(), sampler_laws: includes, predicts
            }
        }
    };
}

/// Creates a module with one test for each law of an estimator, on the statistics of `cases`
/// samples (default 256).
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

/// Creates a module with one test for each law, which calls a closure with the law.
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
