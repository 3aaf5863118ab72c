//! Assumptions about the tokens that a sample does not show.

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
    /// Sums are near to normal, moments are as estimated, but for an allowance, and the sample has seen
    /// the residual's tail, unless the sampler bounds what it may have missed.
    #[default]
    Default,
    /// The tail need not have been seen where selectors or sampler bound what the sample missed: that and
    /// the error of the sums are within epsilon together.
    Strict,
    /// None: a theorem for every finite sample, from weights that are proved to be bounded.
    Rigorous,
}

/// Corrections of what a sample estimates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corrections {
    /// Standard errors by which variances are raised.
    pub(crate) allowance: f64,
    /// Conversion of errors relative to the estimate.
    pub(crate) conversion: Conversion,
}

impl Corrections {
    /// Estimates are taken for the truth.
    pub(crate) const NONE: Self = Self { allowance: 0.0, conversion: Conversion::None };
    /// Corrections of results of the central limit theorem.
    pub(crate) const NORMAL: Self = Self { allowance: ALLOWANCE, conversion: Conversion::Normal };
}

/// The part of delta for missed tokens that would shift the target further than was counted.
const UNSEEN_SHARE: f64 = 0.1;

impl Mode {
    /// The error bar of a sample of one row, whose part of the failure probability is `delta`, given
    /// the radius by the central limit theorem, which is relative to the estimate.
    pub(crate) fn radius(
        self,
        target: Target,
        delta: f64,
        stats: &SampleStats,
        corrections: Corrections,
        asymptotic: impl Fn(&SampleStats, f64) -> f64,
    ) -> Radius {
        let stats = &stats.raised(corrections.allowance);
        let missed = UNSEEN_SHARE * delta;
        let others = delta - missed;
        let bar = |radius: f64, delta: f64| corrections.conversion.bar(radius, delta);
        let tail_counted =
            Assumptions::only(Assumption::Normal) | Assumptions::only(Assumption::Moments);
        let (relative, assumes) = match (self, &stats.unseen, stats.bound) {
            (_, Some(unseen), _) => {
                let shift = unseen::shift(target, stats, unseen, missed);
                let of_sums = asymptotic(stats, others);
                let strict = self == Self::Strict;
                let radius = if strict { of_sums + shift } else { max_or_nan(of_sums, shift) };
                (bar(radius, others), if unseen.proved { tail_counted } else { Assumptions::ALL })
            }
            (Self::Strict, None, Some(bound)) => {
                let shift = strict::shift(target, stats, bound, missed);
                (bar(asymptotic(stats, others) + shift, others), tail_counted)
            }
            _ => (bar(asymptotic(stats, delta), delta), Assumptions::ALL),
        };
        Radius::new(relative, Kind::Asymptotic, assumes)
    }

    /// Evidence that this mode needs.
    pub(crate) fn evidence(self) -> SampleEvidence {
        if self == Self::Rigorous { SampleEvidence::Proof } else { SampleEvidence::Variances }
    }

    /// The union bound of a proof covers fixed sizes.
    pub(crate) fn schedule(self, rounds: NonZeroU8) -> Schedule {
        let rounds = rounds.get().into();
        if self == Self::Rigorous {
            Schedule::FixedSizes { rounds }
        } else {
            Schedule::Adaptive { rounds }
        }
    }
}
