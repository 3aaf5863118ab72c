//! What a promise takes for granted.

use std::fmt;
use std::ops::BitOr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Something that a promise takes for granted, because no theorem gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assumption {
    /// A sum over the sample is near to normal.
    Normal,
    /// Norms and variances estimated from the sample are near to the true ones.
    Moments,
    /// Nothing much heavier than what was drawn is left undrawn.
    TailSeen,
}

impl Assumption {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Normal, Self::Moments, Self::TailSeen];

    /// What it says, as a sentence that may be false.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Normal => "a sum over the sample is near to normal",
            Self::Moments => "norms and variances estimated from the sample are near the true ones",
            Self::TailSeen => "nothing much heavier than what was drawn is left undrawn",
        }
    }
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "normal",
            Self::Moments => "moments",
            Self::TailSeen => "tail-seen",
        })
    }
}

/// A set of [`Assumption`]s; of two together, both sets are assumed.
///
/// ```
/// use vattention_core::promise::{Assumption, Assumptions};
///
/// let both = Assumptions::only(Assumption::Normal) | Assumptions::only(Assumption::Moments);
/// assert!(both.contains(Assumption::Moments) && !both.contains(Assumption::TailSeen));
/// assert_eq!(both.to_string(), "normal, moments");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assumptions(u8);

impl Assumptions {
    /// Nothing is assumed.
    pub const NONE: Self = Self(0);
    /// Everything that can be is.
    pub const ALL: Self = Self(0b111);

    /// One.
    pub fn only(assumption: Assumption) -> Self {
        Self(1 << assumption as u8)
    }

    /// Whether it is assumed.
    pub fn contains(self, assumption: Assumption) -> bool {
        self.0 & Self::only(assumption).0 != 0
    }

    /// Those assumed, in the order of [`Assumption::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Assumption> {
        Assumption::ALL.into_iter().filter(move |&assumption| self.contains(assumption))
    }

    /// Whether nothing is assumed.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

impl BitOr for Assumptions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Assumptions {
    /// Their names, or `nothing`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        for (i, assumption) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{assumption}")?;
        }
        Ok(())
    }
}

/// A list of names.
impl Serialize for Assumptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Assumptions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let all = Vec::<Assumption>::deserialize(from)?;
        Ok(all.into_iter().map(Self::only).fold(Self::NONE, BitOr::bitor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_listed() {
        let all = Assumption::ALL.into_iter().map(Assumptions::only);
        assert_eq!(all.fold(Assumptions::NONE, BitOr::bitor), Assumptions::ALL);
        assert!(Assumptions::ALL.iter().eq(Assumption::ALL));
        assert_eq!(Assumptions::NONE.to_string(), "nothing");
        let names = serde_json::to_string(&Assumptions::ALL).unwrap();
        assert_eq!(names, r#"["normal","moments","tail-seen"]"#);
        assert_eq!(serde_json::from_str::<Assumptions>(&names).unwrap(), Assumptions::ALL);
    }
}
