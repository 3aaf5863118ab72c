//! Why samples violated a promise.

use std::fmt;

use serde::{Deserialize, Serialize};
use vattention_core::promise::{Assumption, Assumptions};

/// What failed in a sample whose error exceeded epsilon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureCause {
    /// Reading the undrawn tokens that outweigh every drawn one, at most a hundredth of those
    /// undrawn, would have more than halved the error. A token weighs `e |v − o|` (`sdpa`),
    /// `e |v|` (`numerator`) or `e` (`denominator`).
    TailSeen,
    /// Not that, and the sample's variance, over the square of what errors are relative to, is
    /// below half of the whole residual's.
    Moments,
    /// Neither.
    Normal,
    /// Not the first; which of the others cannot be told where a selector draws.
    MomentsOrNormal,
}

impl FailureCause {
    const ALL: [Self; 4] = [Self::TailSeen, Self::Moments, Self::Normal, Self::MomentsOrNormal];

    /// The assumptions of which one failed.
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
            one => write!(f, "{}", one.assumptions()),
        }
    }
}

/// In how many samples that violated a promise each [`FailureCause`] was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// [`FailureCause::TailSeen`].
    pub tail_seen: usize,
    /// [`FailureCause::Moments`].
    pub moments: usize,
    /// [`FailureCause::Normal`].
    pub normal: usize,
    /// [`FailureCause::MomentsOrNormal`].
    pub moments_or_normal: usize,
}

impl Failures {
    /// How many.
    pub fn of(&self, cause: FailureCause) -> usize {
        match cause {
            FailureCause::TailSeen => self.tail_seen,
            FailureCause::Moments => self.moments,
            FailureCause::Normal => self.normal,
            FailureCause::MomentsOrNormal => self.moments_or_normal,
        }
    }

    /// The cause found most often.
    pub fn most(&self) -> FailureCause {
        let causes = FailureCause::ALL.into_iter().rev();
        causes.max_by_key(|&cause| self.of(cause)).expect("there are four")
    }

    /// Counts one more.
    pub(super) fn add(&mut self, cause: FailureCause) {
        match cause {
            FailureCause::TailSeen => self.tail_seen += 1,
            FailureCause::Moments => self.moments += 1,
            FailureCause::Normal => self.normal += 1,
            FailureCause::MomentsOrNormal => self.moments_or_normal += 1,
        }
    }

    /// Those of two rows.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            tail_seen: self.tail_seen + other.tail_seen,
            moments: self.moments + other.moments,
            normal: self.normal + other.normal,
            moments_or_normal: self.moments_or_normal + other.moments_or_normal,
        }
    }
}
