//! SampleAttention ([arXiv 2406.15486](https://arxiv.org/abs/2406.15486)): a window, and the fewest
//! columns that hold a share of what sampled queries attend to.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::strategy::{QueryBlock, Reads, share};
use crate::dense::softmax;
use crate::product::{Into, Rows, Threads, times_transposed};

/// Each block of a prompt chooses for itself, from some of its queries and all keys up to its last
/// token; the paper chooses once for the whole prompt. The query heads of a KV head choose together.
///
/// Cost for a block of `count` tokens and a KV head: `sample · count` queries over all keys, and a sort
/// of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleAttention {
    /// Share of a block's tokens whose queries are sampled, evenly spaced, its last token among them;
    /// above 0, at most 1.
    pub sample: f64,
    /// Share of the sampled queries' attention weights that the columns hold at least, as the mean
    /// over these queries; above 0. With 1 all keys are read.
    pub coverage: f64,
    /// The least that a query reads up to itself, as a share of the tokens up to the block's last;
    /// above 0, at most 1. Queries of a tile of 64 begin where its first one does.
    pub window: f64,
}

impl Default for SampleAttention {
    /// The paper's.
    fn default() -> Self {
        Self { sample: 0.05, coverage: 0.95, window: 0.08 }
    }
}

/// As a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Fields {
    #[serde(rename = "strategy")]
    _name: IgnoredAny,
    #[serde(deserialize_with = "share")]
    sample: f64,
    #[serde(deserialize_with = "share")]
    coverage: f64,
    #[serde(deserialize_with = "share")]
    window: f64,
}

impl Default for Fields {
    fn default() -> Self {
        let SampleAttention { sample, coverage, window } = SampleAttention::default();
        Self { _name: IgnoredAny, sample, coverage, window }
    }
}

impl<'de> Deserialize<'de> for SampleAttention {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Fields { sample, coverage, window, .. } = Fields::deserialize(deserializer)?;
        Ok(Self { sample, coverage, window })
    }
}

impl SampleAttention {
    /// What each tile reads; `None` is everything that is not later.
    pub(super) fn choose(&self, block: &QueryBlock<'_>) -> Option<Vec<Reads>> {
        let window = self.window_tokens(block.visible());
        if self.coverage >= 1.0 || window >= block.visible() {
            return None;
        }
        let columns: Arc<[usize]> = fewest(&self.masses(block), self.coverage).into();
        let from = |first: usize| (first + 1).saturating_sub(window);
        Some(block.tiles().map(|first| Reads::new(&columns, from(first))).collect())
    }

    fn window_tokens(&self, visible: usize) -> usize {
        ((self.window * visible as f64).ceil() as usize).max(1)
    }

    /// Tokens of a block of `count` whose queries are sampled.
    fn sampled(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let sampled = ((self.sample * count as f64).ceil() as usize).clamp(1, count);
        (1..=sampled).map(move |i| i * count / sampled - 1)
    }

    /// The weights that the sampled queries give each key, `[visible]`, added up.
    fn masses(&self, block: &QueryBlock<'_>) -> Vec<f64> {
        let (visible, scale) = (block.visible(), 1.0 / (block.head_dim as f32).sqrt());
        let mut masses = vec![0.0; visible];
        let mut queries = Vec::new();
        let mut weights = vec![0.0; block.group * visible];
        let keys = Rows::dense(&block.keys[..visible * block.head_dim], visible);
        for token in self.sampled(block.count()) {
            queries.clear();
            for head in 0..block.group {
                queries.extend(block.query(token, head).iter().map(|number| number * scale));
            }
            let rows = Rows::dense(&queries, block.group);
            times_transposed(rows, keys, block.head_dim, &mut weights, Into::Fresh, Threads::One);
            for row in weights.chunks_exact_mut(visible) {
                let seen = &mut row[..=block.first + token];
                softmax(seen);
                masses.iter_mut().zip(seen).for_each(|(mass, weight)| *mass += f64::from(*weight));
            }
        }
        masses
    }
}

/// The fewest keys that hold a share of all mass, ascending. Of equal masses the lower key comes first.
fn fewest(masses: &[f64], share: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..masses.len()).collect();
    order.sort_unstable_by(|&a, &b| masses[b].total_cmp(&masses[a]).then(a.cmp(&b)));
    let needed = share * masses.iter().sum::<f64>();
    let mut held = 0.0;
    let count = order.iter().position(|&key| {
        held += masses[key];
        held >= needed
    });
    order.truncate(count.map_or(masses.len(), |last| last + 1));
    order.sort_unstable();
    order
}
