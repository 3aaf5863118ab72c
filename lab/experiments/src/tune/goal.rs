//! What settings must be best at.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use vattention_core::Fraction;

/// What settings must be best at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TuningGoal {
    /// The least error of those that read at most this share.
    Density(Fraction),
    /// The least read of those that err at most so much on average.
    Error(f64),
}

/// A density is met by what reads at most this much more: searches come as near.
const NEAR: f64 = 1.02;

impl TuningGoal {
    /// The density, if it is one.
    pub fn density(&self) -> Option<Fraction> {
        if let Self::Density(density) = self { Some(*density) } else { None }
    }

    /// Whether something that reads a share and errs so much meets it; a density, up to 2 % of it.
    pub fn is_met(&self, read: f64, error: f64) -> bool {
        match self {
            Self::Density(density) => read <= density.get() * NEAR,
            Self::Error(most) => error <= *most,
        }
    }
}

impl fmt::Display for TuningGoal {
    /// As it is written.
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
