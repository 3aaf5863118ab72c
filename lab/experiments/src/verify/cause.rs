//! Causes of violations of a promise.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vattention_core::promise::{Assumption, Assumptions};

/// Cause of a sample's error above epsilon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureCause {
    /// The sample misses heavy tokens: the error would be less than half if the undrawn tokens that
    /// outweigh every drawn one were read as well, at most a hundredth of all undrawn tokens. The
    /// weight of a token is `e |v − o|` (`sdpa`), `e |v|` (`numerator`) or `e` (`denominator`).
    TailSeen,
    /// The sample misses no heavy tokens, but its relative variance (over the square of the norm
    /// that errors are relative to) is below half of that of the whole residual.
    Moments,
    /// The sample misses no heavy tokens, and its variance is large enough.
    Normal,
    /// The sample misses no heavy tokens; its variance cannot be compared with that of the
    /// residual, because the sample is not uniform.
    MomentsOrNormal,
}

impl FailureCause {
    const ALL: [Self; 4] = [Self::TailSeen, Self::Moments, Self::Normal, Self::MomentsOrNormal];

    /// Returns the assumptions of the certificate, one of which failed.
    pub fn assumptions(self) -> Assumptions {
        match self {
            Self::TailSeen => Assumptions::only(Assumption::TailSeen),
            Self::Moments => Assumptions::only(Assumption::Moments),
            Self::Normal => Assumptions::only(Assumption::Normal),
            Self::MomentsOrNormal => Self::Moments.assumptions() | Self::Normal.assumptions(),
        }
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MomentsOrNormal => write!(f, "{} or {}", Self::Moments, Self::Normal),
            cause => write!(f, "{}", cause.assumptions()),
        }
    }
}

/// Number of samples that violated a promise, by [`FailureCause`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureCounts {
    /// [`FailureCause::TailSeen`].
    pub tail_seen: usize,
    /// [`FailureCause::Moments`].
    pub moments: usize,
    /// [`FailureCause::Normal`].
    pub normal: usize,
    /// [`FailureCause::MomentsOrNormal`].
    pub moments_or_normal: usize,
}

impl FailureCounts {
    /// Number of samples with a cause.
    pub fn count(&self, cause: FailureCause) -> usize {
        match cause {
            FailureCause::TailSeen => self.tail_seen,
            FailureCause::Moments => self.moments,
            FailureCause::Normal => self.normal,
            FailureCause::MomentsOrNormal => self.moments_or_normal,
        }
    }

    /// Returns the most frequent cause.
    pub fn most_frequent(&self) -> FailureCause {
        let causes = FailureCause::ALL.into_iter().rev();
        causes.max_by_key(|&cause| self.count(cause)).expect("there are four")
    }

    /// Counts another sample.
    pub(super) fn add(&mut self, cause: FailureCause) {
        match cause {
            FailureCause::TailSeen => self.tail_seen += 1,
            FailureCause::Moments => self.moments += 1,
            FailureCause::Normal => self.normal += 1,
            FailureCause::MomentsOrNormal => self.moments_or_normal += 1,
        }
    }

    /// Returns the sums of two rows' counts.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            tail_seen: self.tail_seen + other.tail_seen,
            moments: self.moments + other.moments,
            normal: self.normal + other.normal,
            moments_or_normal: self.moments_or_normal + other.moments_or_normal,
        }
    }
}
