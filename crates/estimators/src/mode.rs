//! How sure a promise is to be of what the sample does not show.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{Assumptions, Budget, Kind, Promise, SampleStats};

use crate::goal::Goal;
use crate::{rigorous, strict};

/// What a budget may take for granted (docs/guarantees.md, sections 4 and 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// That sums are near to normal, that moments are as estimated, but for an allowance, and that the
    /// sample has seen the residual's tail.
    #[default]
    Default,
    /// Where the selectors prove a bound, the sample is so large that what it missed cannot matter, and
    /// no tail need have been seen.
    Strict,
    /// Nothing: a theorem for every finite sample, from weights that are proved to be bounded.
    Rigorous,
}

impl Mode {
    /// The budget of an estimator that asks for `asymptotic` tokens by the central limit theorem, of
    /// statistics whose variances are raised by `allowance` of their standard errors.
    pub(crate) fn budget(
        self,
        promise: &Promise,
        stats: &SampleStats,
        allowance: f64,
        asymptotic: impl Fn(&SampleStats, &Goal) -> usize,
    ) -> Budget {
        let goal = Goal::new(promise, stats);
        match self {
            Self::Default => Budget {
                tokens: asymptotic(&stats.raised(allowance), &goal),
                kind: Kind::Asymptotic,
                assumes: Assumptions::ALL,
            },
            Self::Strict => strict::budget(&goal, &stats.raised(allowance), asymptotic),
            Self::Rigorous => rigorous::budget(&goal, stats),
        }
    }

    /// Whether it can promise nothing without a proved bound.
    pub(crate) fn needs_bound(self) -> bool {
        self == Self::Rigorous
    }
}
