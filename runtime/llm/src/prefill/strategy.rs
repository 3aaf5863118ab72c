//! Which keys the queries of a prompt read: one strategy per file, and the file that names one.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::sample_attention::SampleAttention;
use crate::{Error, Result};

/// Tokens whose queries share a list of keys: a tile of attention.
pub(crate) const TILE: usize = 64;

/// Which keys the queries of a prompt read. What comes after the prompt attends by the pipeline.
///
/// Selectors that learn from a prompt's last queries take these queries' attention over all keys by themselves, whatever
/// the strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "strategy", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Strategy {
    /// All keys that are not later.
    #[default]
    Dense,
    /// A window, and the columns that sampled queries attend to.
    SampleAttention(SampleAttention),
}

/// The queries of a block of tokens, and the keys of one KV head that they may read.
pub(crate) struct QueryBlock<'a> {
    /// `[count, query_heads, head_dim]`, after rotation.
    pub(crate) queries: &'a [f32],
    pub(crate) query_heads: usize,
    /// Those query heads that share the KV head, from this one on.
    pub(crate) first_head: usize,
    pub(crate) group: usize,
    /// `[first + count, head_dim]`, after rotation.
    pub(crate) keys: &'a [f32],
    pub(crate) head_dim: usize,
    /// The number of the block's first token.
    pub(crate) first: usize,
}

/// What the queries of a tile read of one KV head: some earlier keys, and all from one on that are not
/// later than the query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reads {
    /// Ascending.
    earlier: Arc<[usize]>,
    from: usize,
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

    /// Reads a TOML file: `strategy`, a name, and its fields.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::PrefillFile`] with the line and what was expected.
    pub fn open(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| Error::file(path, source))?;
        Self::parse(&text).map_err(|reason| Error::PrefillFile { path: path.into(), reason })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let said = |error: toml::de::Error| error.to_string().trim_end().to_owned();
        let Named { strategy } = toml::from_str(text).map_err(said)?;
        match strategy {
            Name::Dense => toml::from_str(text).map(|Nothing { .. }| Self::Dense),
            Name::SampleAttention => toml::from_str(text).map(Self::SampleAttention),
        }
        .map_err(said)
    }

    /// What each tile of the block reads; `None` is everything that is not later.
    pub(crate) fn choose(&self, block: &QueryBlock<'_>) -> Option<Vec<Reads>> {
        match self {
            Self::Dense => None,
            Self::SampleAttention(sample) => sample.choose(block),
        }
    }
}

/// The name alone, whatever the fields are.
#[derive(Deserialize)]
struct Named {
    strategy: Name,
}

enum Name {
    Dense,
    SampleAttention,
}

impl<'de> Deserialize<'de> for Name {
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

/// A strategy without fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {
    #[serde(rename = "strategy")]
    _name: de::IgnoredAny,
}

/// A number above 0, at most 1.
pub(super) fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let share = f64::deserialize(deserializer)?;
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(de::Error::custom(format!("{share}; expected a number above 0, at most 1")))
    }
}

impl QueryBlock<'_> {
    /// Tokens of the block.
    pub(crate) fn count(&self) -> usize {
        self.queries.len() / (self.query_heads * self.head_dim)
    }

    /// Tokens up to the block's last.
    pub(crate) fn visible(&self) -> usize {
        self.first + self.count()
    }

    /// One query head's query of one of its tokens, `[head_dim]`.
    pub(crate) fn query(&self, token: usize, head: usize) -> &[f32] {
        let at = (token * self.query_heads + self.first_head + head) * self.head_dim;
        &self.queries[at..at + self.head_dim]
    }

    /// The numbers of the first tokens of its tiles.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = usize> {
        (self.first..self.visible()).step_by(TILE)
    }
}

impl Reads {
    /// Of `keys`, ascending, those before `from`; and all from there on.
    pub(crate) fn new(keys: &Arc<[usize]>, from: usize) -> Self {
        Self { earlier: Arc::clone(keys), from }
    }

    /// The keys before [`from`](Self::from), ascending.
    pub(crate) fn earlier(&self) -> &[usize] {
        &self.earlier[..self.earlier.partition_point(|&key| key < self.from)]
    }

    pub(crate) fn from(&self) -> usize {
        self.from
    }

    /// Pairs of a token and a key that tokens `first .. first + count` read.
    pub(crate) fn pairs(&self, first: usize, count: usize) -> u64 {
        let before = (self.from - self.earlier().len()) as u64;
        causal_pairs(first, count) - before * count as u64
    }
}

/// Pairs of a token and a key that is not later, of tokens `first .. first + count`.
pub(crate) fn causal_pairs(first: usize, count: usize) -> u64 {
    (first..first + count).map(|token| token as u64 + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_a_strategy_and_its_fields() {
        assert_eq!(Strategy::parse("strategy = \"dense\""), Ok(Strategy::Dense));
        let paper = SampleAttention { sample: 0.05, coverage: 0.95, window: 0.08 };
        let named = "strategy = \"sample-attention\"\n";
        assert_eq!(Strategy::parse(named), Ok(Strategy::SampleAttention(paper)));
        let text = format!("{named}coverage = 0.8\nwindow = 1.0\nsample = 0.5");
        let all = SampleAttention { sample: 0.5, coverage: 0.8, window: 1.0 };
        assert_eq!(Strategy::parse(&text), Ok(Strategy::SampleAttention(all)));
    }

    #[test]
    fn shipped_files_are_the_papers_and_one_that_covers_less() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/prefill");
        let open = |name: &str| Strategy::open(&folder.join(name)).unwrap();
        let paper = SampleAttention::default();
        assert_eq!(open("sample-attention.toml"), Strategy::SampleAttention(paper));
        let less = SampleAttention { coverage: 0.8, ..paper };
        assert_eq!(open("sample-attention-0.8.toml"), Strategy::SampleAttention(less));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_line() {
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
            let said = Strategy::parse(text).unwrap_err();
            assert!(expected.iter().all(|part| said.contains(part)), "{text:?}: {said}");
        }
    }

    #[test]
    fn pairs_are_counted_as_they_are_read() {
        let keys: Arc<[usize]> = [1, 4, 6, 9].into();
        for from in 0..=10 {
            let reads = Reads::new(&keys, from);
            let read = |token: usize| (0..=token).filter(|key| *key >= from || keys.contains(key));
            let expected: usize = (10..15).map(|token| read(token).count()).sum();
            assert_eq!(reads.pairs(10, 5), expected as u64, "{from}");
        }
        assert_eq!(causal_pairs(10, 5), 11 + 12 + 13 + 14 + 15);
    }
}
