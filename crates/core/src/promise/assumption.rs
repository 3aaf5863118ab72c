//! Assumptions of promises.

use std::borrow::Cow;
use std::fmt;
use std::ops::BitOr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Condition that a promise assumes and no theorem proves.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Assumption {
    /// Sums over the sample are approximately normal.
    Normal,
    /// Norms and variances estimated from the sample are close to the true ones.
    Moments,
    /// No undrawn token is much heavier than the drawn tokens.
    TailSeen,
}

impl Assumption {
    /// All assumptions.
    pub const ALL: [Self; 3] = [Self::Normal, Self::Moments, Self::TailSeen];

    /// Statement that is assumed, as a clause without capital and full stop.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Normal => "sums over the sample are approximately normal",
            Self::Moments => {
                "norms and variances estimated from the sample are close to the true ones"
            }
            Self::TailSeen => "no undrawn token is much heavier than the drawn tokens",
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

/// A set of [`Assumption`]s. The operator `|` joins two sets.
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
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// The set of all assumptions.
    pub const ALL: Self = Self(0b111);

    /// The set of one assumption.
    pub fn only(assumption: Assumption) -> Self {
        Self(1 << assumption as u8)
    }

    /// Returns true if the set contains this assumption.
    pub fn contains(self, assumption: Assumption) -> bool {
        self.0 & Self::only(assumption).0 != 0
    }

    /// Assumptions in the set, in the order of [`Assumption::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Assumption> {
        Assumption::ALL.into_iter().filter(move |&assumption| self.contains(assumption))
    }

    /// Returns true if the set is empty.
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
    /// Writes the names of the assumptions, or `nothing`.
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

/// The set is written as a list of names.
impl Serialize for Assumptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl JsonSchema for Assumptions {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Assumptions".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Vec::<Assumption>::json_schema(generator)
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
    fn assumptions_are_written_and_read_as_names() {
        let all = Assumption::ALL.into_iter().map(Assumptions::only);
        assert_eq!(all.fold(Assumptions::NONE, BitOr::bitor), Assumptions::ALL);
        assert!(Assumptions::ALL.iter().eq(Assumption::ALL));
        assert_eq!(Assumptions::NONE.to_string(), "nothing");
        let names = serde_json::to_string(&Assumptions::ALL).unwrap();
        assert_eq!(names, r#"["normal","moments","tail-seen"]"#);
        assert_eq!(serde_json::from_str::<Assumptions>(&names).unwrap(), Assumptions::ALL);
    }
}
