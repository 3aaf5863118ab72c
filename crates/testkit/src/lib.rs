//! What a selector must be, whoever wrote it: laws as plain functions, the heads to try them on,
//! and one macro that turns them into tests.
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
//! | `grows` | what is appended together does not matter |
//! | `forks` | a clone goes on as the original would, and leaves it alone |
//! | `adds` | what was picked before stays |
//! | `weighs` | every pick is certain, unless `randomized()` says otherwise |
//! | `bounds` | a promised bound on untaken logits is true |
//! | `agrees` | every query head of a group picks the same, if `group_wide()` says so |
//! | `tells` | a `recipe()`, if there is one, is what the selector does, with the bound that it promises |
//! | `causal` | tokens that a row does not see change nothing of its picks |
//!
//! A law is a function of a selector's config and a [`Head`], so it can be called with a head of
//! one's own too. Cases have a fixed seed: the same on every run. `PROPTEST_CASES` makes more of
//! them, `PROPTEST_RNG_SEED` others.

mod head;
pub mod laws;
mod run;

pub use head::{Head, Texture, heads};
pub use laws::{LAWS, Law, Verdict};
pub use run::run;

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
            fn weighs() {
                obeys($crate::laws::weighs);
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
            fn tells() {
                obeys($crate::laws::tells);
            }

            #[test]
            fn causal() {
                obeys($crate::laws::causal);
            }
        }
    };
}
