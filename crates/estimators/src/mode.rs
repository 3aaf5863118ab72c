//! Modes: assumptions about moments and about the tokens that a sample missed.

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Kind, SampleStats, Target,
    plugin::{Radius, SampleEvidence, Schedule},
    promise::{Assumption, Assumptions},
    sample::{ALLOWANCE, max_or_nan},
};

use crate::conversion::Conversion;
use crate::{strict, unseen};

/// Assumptions of a bound (docs/guarantees.md, sections 4 and 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Sums are nearly normal, moments are as estimated apart from an allowance, and no undrawn
    /// token is much heavier than the drawn ones. The last assumption is not needed if the sampler
    /// proves a bound on the effect of missed tokens.
    #[default]
    Default,
    /// The default assumptions, but undrawn tokens may be heavy if selectors or the sampler prove a
    /// bound on the effect of missed tokens: the error of the sums plus this bound is within
    /// epsilon.
    Strict,
    /// No assumptions: a theorem for every finite sample, from proved bounds on the weights.
    Rigorous,
}

/// Corrections of the estimates from a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corrections {
    /// Number of standard errors by which variances are raised.
    pub(crate) allowance: f64,
    /// Conversion of errors relative to the estimate.
    pub(crate) conversion: Conversion,
}

impl Corrections {
    /// No corrections: estimates are taken for the true values.
    pub(crate) const NONE: Self = Self { allowance: 0.0, conversion: Conversion::None };
    /// Corrections of radii by the central limit theorem.
    pub(crate) const NORMAL: Self = Self { allowance: ALLOWANCE, conversion: Conversion::Normal };
}

/// Share of delta reserved for the event that the effect of missed tokens exceeds its bound.
const MISSED_SHARE: f64 = 0.1;

impl Mode {
    /// Error bar of a row's sample, which the error exceeds with probability `delta` at most.
    ///
    /// `asymptotic(stats, delta)` is the radius by the central limit theorem, relative to the
    /// estimate.
    pub(crate) fn radius(
        self,
        target: Target,
        delta: f64,
        stats: &SampleStats,
        corrections: Corrections,
        asymptotic: impl Fn(&SampleStats, f64) -> f64,
    ) -> Radius {
        let stats = &stats.with_raised_variances(corrections.allowance);
        let delta_missed = MISSED_SHARE * delta;
        let delta_sums = delta - delta_missed;
        let bar = |radius: f64, delta: f64| corrections.conversion.bar(radius, delta);
        let all_but_tail =
            Assumptions::only(Assumption::Normal) | Assumptions::only(Assumption::Moments);
        let (relative, assumes) = match (self, &stats.unseen, stats.bound) {
            (_, Some(unseen), _) => {
                let shift = unseen::shift(target, stats, unseen, delta_missed);
                let sums = asymptotic(stats, delta_sums);
                let strict = self == Self::Strict;
                let radius = if strict { sums + shift } else { max_or_nan(sums, shift) };
                let assumes = if unseen.proved { all_but_tail } else { Assumptions::ALL };
                (bar(radius, delta_sums), assumes)
            }
            (Self::Strict, None, Some(bound)) => {
                let shift = strict::shift(target, stats, bound, delta_missed);
                (bar(asymptotic(stats, delta_sums) + shift, delta_sums), all_but_tail)
            }
            _ => (bar(asymptotic(stats, delta), delta), Assumptions::ALL),
        };
        Radius::new(relative, Kind::Asymptotic, assumes)
    }

    /// Evidence that this mode requires from the sampler.
    pub(crate) fn evidence(self) -> SampleEvidence {
        if self == Self::Rigorous { SampleEvidence::Proof } else { SampleEvidence::Variances }
    }

    /// Schedule of checks with at most `rounds` of them. A proof covers fixed sizes only, by a
    /// union bound.
    pub(crate) fn schedule(self, rounds: NonZeroU8) -> Schedule {
        let rounds = rounds.get().into();
        if self == Self::Rigorous {
            Schedule::FixedSizes { rounds }
        } else {
            Schedule::Adaptive { rounds }
        }
    }
}
