//! Goals of the search for the best settings.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use vattention_core::Fraction;

/// Goal of the search: a limit on density or error, with the other to be minimized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TuningGoal {
    /// Least error at a density of at most this share.
    Density(Fraction),
    /// Least density at a mean error of at most this number.
    Error(f64),
}

/// Tolerance of a density goal, as a factor: the density searches end within it.
const NEAR: f64 = 1.02;

impl TuningGoal {
    /// Limit on the density; `None` for a limit on the error.
    pub fn density(&self) -> Option<Fraction> {
        if let Self::Density(density) = self { Some(*density) } else { None }
    }

    /// Returns true if a density of `read` and a mean error of `error` meet the goal; a density
    /// limit may be exceeded by 2 %.
    pub fn is_met(&self, read: f64, error: f64) -> bool {
        match self {
            Self::Density(density) => read <= density.get() * NEAR,
            Self::Error(most) => error <= *most,
        }
    }
}

impl fmt::Display for TuningGoal {
    /// Writes `density=0.1` or `error=0.01`, which parsing reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Density(density) => write!(f, "density={density}"),
            Self::Error(most) => write!(f, "error={most}"),
        }
    }
}

impl FromStr for TuningGoal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected density=SHARE or error=NUMBER".to_owned();
        let (name, number) = text.split_once('=').ok_or_else(expected)?;
        let number: f64 = number.parse().map_err(|_| expected())?;
        match name {
            "density" => Fraction::try_from(number).map(Self::Density),
            "error" if number > 0.0 && number.is_finite() => Ok(Self::Error(number)),
            "error" => Err(format!("an error must be above 0, got {number}")),
            _ => Err(expected()),
        }
    }
}

impl Serialize for TuningGoal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
