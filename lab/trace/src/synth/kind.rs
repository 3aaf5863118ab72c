//! Kinds of synthetic heads.

use std::str::FromStr;

/// Distribution of a head's attention, which determines how hard the head is to approximate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Attention is spread over all tokens.
    Diffuse,
    /// Sinks, some heavy hitters, and a flat distribution of the other tokens.
    Typical,
    /// Sinks, heavy hitters, and a skewed distribution of the other tokens.
    Sharp,
    /// No sinks; a few tokens of a very skewed distribution dominate.
    Vsharp,
    /// Mostly recent tokens.
    Local,
    /// Scores that oscillate with the distance.
    Osc,
    /// 32 tokens have about half of the attention weight.
    Needle,
    /// A distribution with heavy tails.
    Heavy,
}

/// Parameters of a kind.
pub(super) struct Recipe {
    /// Standard deviation of the scores before planting.
    pub(super) bulk: f64,
    /// Factor of the topic of a segment in its keys.
    pub(super) topic: f64,
    /// Number of planted heavy hitters.
    pub(super) hitters: usize,
    /// Share of the sinks in the attention weight.
    pub(super) sinks: f64,
}

impl HeadKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Diffuse,
        Self::Typical,
        Self::Sharp,
        Self::Vsharp,
        Self::Local,
        Self::Osc,
        Self::Needle,
        Self::Heavy,
    ];

    /// Name of the kind, which parsing reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Diffuse => "diffuse",
            Self::Typical => "typical",
            Self::Sharp => "sharp",
            Self::Vsharp => "vsharp",
            Self::Local => "local",
            Self::Osc => "osc",
            Self::Needle => "needle",
            Self::Heavy => "heavy",
        }
    }

    pub(super) fn recipe(self) -> Recipe {
        let (bulk, topic, hitters, sinks) = match self {
            Self::Diffuse => (0.6, 0.5, 8, 0.1),
            Self::Typical => (1.0, 0.7, 24, 0.4),
            Self::Sharp => (1.8, 0.7, 24, 0.3),
            Self::Vsharp => (3.0, 0.7, 8, 0.0),
            Self::Local => (0.8, 0.7, 16, 0.2),
            Self::Osc => (1.5, 0.2, 8, 0.2),
            Self::Needle => (0.6, 0.7, 32, 0.1),
            Self::Heavy => (0.8, 0.7, 0, 0.2),
        };
        Recipe { bulk, topic, hitters, sinks }
    }
}

impl FromStr for HeadKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown kind `{name}`; expected one of {known}")
        })
    }
}
