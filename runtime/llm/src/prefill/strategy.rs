//! Strategies that choose the keys a prompt's queries read, and the files that name one.
//!
//! A strategy has a file beside `sample_attention.rs`, a variant of [`Strategy`], and a name that
//! [`Strategy::open`] reads.

use std::fmt;
use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::reads::{QueryBlock, Reads};
use super::sample_attention::SampleAttention;
use crate::{Error, Result};

/// Strategy that chooses the keys a prompt's queries read. Tokens after the prompt attend by the
/// pipeline.
///
/// Selectors that learn from a prompt's last queries compute these queries' attention over all keys
/// themselves, under any strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "strategy", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Strategy {
    /// All keys up to each query's token.
    #[default]
    Dense,
    /// A window, and the columns that sampled queries attend to.
    SampleAttention(SampleAttention),
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense => f.write_str("dense attention"),
            Self::SampleAttention(SampleAttention { sample, coverage, window }) => {
                write!(
                    f,
                    "sample-attention (sample {sample}, coverage {coverage}, window {window})"
                )
            }
        }
    }
}

impl Strategy {
    const NAMES: &'static str = "dense, sample-attention";

    /// Reads a TOML file: `strategy`, the name, and the strategy's fields.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::PrefillFile`] with the line and the expected value.
    pub fn open(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| Error::file(path, source))?;
        Self::parse(&text).map_err(|reason| Error::PrefillFile { path: path.into(), reason })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let format_error = |error: toml::de::Error| error.to_string().trim_end().to_owned();
        let NamedStrategy { strategy } = toml::from_str(text).map_err(format_error)?;
        match strategy {
            StrategyName::Dense => toml::from_str(text).map(|NoFields { .. }| Self::Dense),
            StrategyName::SampleAttention => toml::from_str(text).map(Self::SampleAttention),
        }
        .map_err(format_error)
    }

    /// Chooses the keys that each tile of the block reads; `None` means dense attention.
    pub(crate) fn choose(&self, block: &QueryBlock<'_>) -> Option<Vec<Reads>> {
        match self {
            Self::Dense => None,
            Self::SampleAttention(sample) => sample.choose(block),
        }
    }
}

/// Name of a strategy; other fields are ignored.
#[derive(Deserialize)]
struct NamedStrategy {
    strategy: StrategyName,
}

enum StrategyName {
    Dense,
    SampleAttention,
}

impl<'de> Deserialize<'de> for StrategyName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "dense" => Ok(Self::Dense),
            "sample-attention" => Ok(Self::SampleAttention),
            other => {
                let known = Strategy::NAMES;
                Err(de::Error::custom(format!("`{other}` is no strategy; expected one of {known}")))
            }
        }
    }
}

/// Fields of a strategy without parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {
    #[serde(rename = "strategy")]
    _name: de::IgnoredAny,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_a_strategy_and_its_fields() {
        assert_eq!(Strategy::parse("strategy = \"dense\""), Ok(Strategy::Dense));
        let paper = SampleAttention { sample: 0.05, coverage: 0.95, window: 0.08 };
        let named = "strategy = \"sample-attention\"\n";
        assert_eq!(Strategy::parse(named), Ok(Strategy::SampleAttention(paper)));
        let text = format!("{named}coverage = 0.8\nwindow = 1.0\nsample = 0.5");
        let all = SampleAttention { sample: 0.5, coverage: 0.8, window: 1.0 };
        assert_eq!(Strategy::parse(&text), Ok(Strategy::SampleAttention(all)));
    }

    #[test]
    fn shipped_files_have_the_papers_parameters_and_a_lower_coverage() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/prefill");
        let open = |name: &str| Strategy::open(&folder.join(name)).unwrap();
        let paper = SampleAttention::default();
        assert_eq!(open("sample-attention.toml"), Strategy::SampleAttention(paper));
        let less = SampleAttention { coverage: 0.8, ..paper };
        assert_eq!(open("sample-attention-0.8.toml"), Strategy::SampleAttention(less));
    }

    #[test]
    fn errors_of_files_name_the_line() {
        let sample = "strategy = \"sample-attention\"\n";
        for (text, expected) in [
            ("", vec!["missing field `strategy`"]),
            ("strategy = \"flex\"", vec!["line 1", "`flex` is no strategy", "sample-attention"]),
            ("strategy = \"dense\"\nwindow = 0.5", vec!["line 2", "unknown field `window`"]),
            (&format!("{sample}\nalpha = 0.5"), vec!["line 3", "`alpha`", "coverage"]),
            (&format!("{sample}coverage = 1.5"), vec!["line 2", "1.5; expected a number above 0"]),
            (&format!("{sample}window = 0.0"), vec!["line 2", "0; expected a number above 0"]),
            (&format!("{sample}sample = nan"), vec!["line 2", "NaN; expected a number above 0"]),
            (&format!("{sample}sample = \"5 %\""), vec!["line 2", "expected f64"]),
            ("strategy = ", vec!["line 1"]),
        ] {
            let message = Strategy::parse(text).unwrap_err();
            assert!(expected.iter().all(|part| message.contains(part)), "{text:?}: {message}");
        }
    }
}
