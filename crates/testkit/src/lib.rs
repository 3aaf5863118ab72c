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
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn obeys(law: $crate::Law) {
                $crate::run(law, &$config, $cases);
            }

            #[test]
            fn round_trips() {
                obeys($crate::laws::round_trips);
            }

            #[test]
            fn repeats() {
                obeys($crate::laws::repeats);
            }

            #[test]
            fn grows() {
                obeys($crate::laws::grows);
            }

            #[test]
            fn forks() {
                obeys($crate::laws::forks);
            }

            #[test]
            fn adds() {
                obeys($crate::laws::adds);
            }

            #[test]
            fn bounds() {
                obeys($crate::laws::bounds);
            }

            #[test]
            fn agrees() {
                obeys($crate::laws::agrees);
            }

            #[test]
            fn causal() {
                obeys($crate::laws::causal);
            }

            #[test]
            fn evicts() {
                obeys($crate::laws::evicts);
            }
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

            fn obeys(law: $crate::SamplerLaw) {
                $crate::run_sampler(law, &$config, $cases);
            }

            #[test]
            fn round_trips() {
                obeys($crate::sampler_laws::round_trips);
            }

            #[test]
            fn repeats() {
                obeys($crate::sampler_laws::repeats);
            }

            #[test]
            fn grows() {
                obeys($crate::sampler_laws::grows);
            }

            #[test]
            fn forks() {
                obeys($crate::sampler_laws::forks);
            }

            #[test]
            fn causal() {
                obeys($crate::sampler_laws::causal);
            }

            #[test]
            fn leaves() {
                obeys($crate::sampler_laws::leaves);
            }

            #[test]
            fn nests() {
                obeys($crate::sampler_laws::nests);
            }

            #[test]
            fn answers() {
                obeys($crate::sampler_laws::answers);
            }

            #[test]
            fn includes() {
                $crate::sampler_laws::includes(&$config).unwrap();
            }

            #[test]
            fn foretells() {
                $crate::sampler_laws::foretells(&$config).unwrap();
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
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn obeys(law: $crate::EstimatorLaw) {
                $crate::run_estimator(law, &$estimator, $cases);
            }

            #[test]
            fn round_trips() {
                obeys($crate::estimator_laws::round_trips);
            }

            #[test]
            fn falls() {
                obeys($crate::estimator_laws::falls);
            }

            #[test]
            fn agrees() {
                obeys($crate::estimator_laws::agrees);
            }

            #[test]
            fn scales() {
                obeys($crate::estimator_laws::scales);
            }

            #[test]
            fn is_set() {
                obeys($crate::estimator_laws::is_set);
            }

            #[test]
            fn distrusts() {
                obeys($crate::estimator_laws::distrusts);
            }

            #[test]
            fn is_monotone() {
                obeys($crate::estimator_laws::is_monotone);
            }
        }
    };
}
