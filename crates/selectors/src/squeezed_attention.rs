//! `squeezed-attention`: the clusters of a fixed context whose mean key has a large score, and all
//! tokens after the context.
//!
//! At the end of the first prompt that is longer than `window`, the tokens before its last `window`
//! are clustered by the directions of their keys. With `c` the mean of a cluster's keys and `N`
//! their number, each token of the cluster has the score
//!
//! ```text
//! score = exp(q·c) / Σ over the clusters  N exp(q·c)
//! ```
//!
//! so that the scores of all tokens sum to 1. If the model has a soft cap, it applies to `q·c`; if
//! it has learned an attention sink, the sink adds `exp(sink)` to the sum. Clusters whose score
//! exceeds a threshold are picked whole. The last `window` tokens of that prompt, such as a
//! question, and all later tokens, of prompts or generated, are picked, too. Without such a prompt
//! everything is picked.
//!
//! # The threshold
//! Either `threshold` is given, one number for all heads and layers, so that heads whose attention
//! is spread out read more, or `size` is given. With `size`, each KV head computes its own
//! threshold at the end of the prompt, such that the scores of `size` tokens of the context exceed
//! it. These scores are averages over the last `window` queries of the prompt, for all query heads
//! of the KV head together. The authors compute one threshold in this way for all heads and layers,
//! which a selector of one KV head cannot. A density search over a trace finds one `threshold` for
//! all heads and layers.
//!
//! # Two levels
//! With `coarse` the mean keys are clustered again. The coarse clusters are scored first, each by
//! the mean key of its tokens. Clusters are scored only if their coarse cluster exceeds the
//! threshold of the coarse level. In the sum, a coarse cluster below this threshold counts as one
//! cluster, with its own mean key and the number of its tokens.
//!
//! Cost: O(clusters · head_dim) per query head, with `coarse` only for the coarse clusters and for
//! the clusters in the coarse ones above the threshold, and O(visible) to pick tokens. The index
//! takes 4 bytes per token and `4 · head_dim` per cluster. The end of the prompt costs O(iterations
//! · context · clusters · head_dim) once, less if k-means converges earlier.
//!
//! # Guarantee
//! The selector alone guarantees nothing: a mean underestimates its cluster, as
//! `N exp(q·c) ≤ Σ exp(q·k)`, so that a cluster may hide a heavy token among light ones. An
//! estimator after the selector samples the clusters left over.
//!
//! Departures from the paper: k-means starts at distinct keys in a random order, while the authors'
//! starts at keys that are far apart (k-means++); thresholds computed for a `size` are per KV head;
//! the threshold of the coarse level, and the replacement of the clusters that it prunes, are our
//! own choice.
//!
//! Hooper, Kim, Mohammadzadeh, Maheswaran, Zhao, Paik, Mahoney, Keutzer, Gholami (2024), "Squeezed
//! Attention: Accelerating Long Context Length LLM Inference", <https://arxiv.org/abs/2411.09688>.

mod context;

use std::num::NonZeroU16;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Error, Fraction, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{PromptQueries, Tunable},
    register, typetag,
};

use context::{Context, HeadQuery};

/// Clusters of a fixed context whose mean key has a large score, and all tokens after the context.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqueezedAttention {
    /// Number of tokens of the context whose scores exceed the threshold for the prompt's last
    /// queries, on average; a share is taken of the context. Set either this or `threshold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Score that a cluster must exceed, the same at all heads. Set either this or `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Fraction>,
    /// Number of clusters; a share is taken of the context's tokens.
    #[serde(default = "default_clusters")]
    pub clusters: Size,
    /// Coarse level above the clusters; absent: one level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coarse: Option<CoarseClusters>,
    /// Number of last tokens of the prompt, which are not clustered and whose queries determine the
    /// threshold.
    #[serde(default = "default_window")]
    pub window: NonZeroU16,
    /// Largest number of k-means iterations.
    #[serde(default = "default_iterations")]
    pub iterations: u16,
}

/// Coarse clusters of clusters, which are scored first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoarseClusters {
    /// Number of tokens whose scores exceed the threshold for the prompt's last queries, on
    /// average, as for the level below. Set either this or `threshold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Score that a coarse cluster must exceed. Set either this or `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Fraction>,
    /// Number of coarse clusters; a share is taken of the context's tokens.
    #[serde(default = "default_coarse_clusters")]
    pub clusters: Size,
}

/// Returns a share as a size; it must be between 0 and 1.
fn share(share: f64) -> Size {
    Size::Share(Fraction::try_from(share).expect("a share between 0 and 1"))
}

/// Default of `clusters`, the authors' 5 %.
fn default_clusters() -> Size {
    share(0.05)
}

/// Default of the number of coarse clusters, the authors' 1 %.
fn default_coarse_clusters() -> Size {
    share(0.01)
}

/// Default of `window`, the authors' 100.
fn default_window() -> NonZeroU16 {
    const { NonZeroU16::new(100).unwrap() }
}

fn default_iterations() -> u16 {
    10
}

/// Rule for the threshold that a score must exceed.
#[derive(Clone, Copy, Debug)]
enum ThresholdRule {
    /// Threshold that the average scores of this number of tokens exceed.
    Size(Size),
    /// Fixed threshold.
    Threshold(f64),
}

impl ThresholdRule {
    /// Returns the rule of the one field that is set, of the two fields of `level`.
    fn from_fields(size: Option<Size>, threshold: Option<Fraction>, level: &str) -> Result<Self> {
        match (size, threshold) {
            (Some(size), None) => Ok(Self::Size(size)),
            (None, Some(threshold)) => Ok(Self::Threshold(threshold.get())),
            (both, _) => {
                let found = if both.is_some() { "both" } else { "neither" };
                let reason = format!("{level} has {found}: expected either `size` or `threshold`");
                Err(Error::Build { component: "squeezed-attention".into(), reason })
            }
        }
    }
}

impl SqueezedAttention {
    /// Returns the rules of the fine and of the coarse level.
    fn threshold_rules(&self) -> Result<(ThresholdRule, Option<ThresholdRule>)> {
        let coarse = self
            .coarse
            .map(|coarse| ThresholdRule::from_fields(coarse.size, coarse.threshold, "`coarse`"))
            .transpose()?;
        Ok((ThresholdRule::from_fields(self.size, self.threshold, "the selector")?, coarse))
    }
}

#[typetag::serde(name = "squeezed-attention")]
impl SelectorConfig for SqueezedAttention {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let (rule, coarse_rule) = self.threshold_rules()?;
        let config = self.clone();
        Ok(Box::new(SqueezedAttentionSelector {
            config,
            rule,
            coarse_rule,
            site: *site,
            context: None,
        }))
    }

    fn check(&self) -> Result<()> {
        self.threshold_rules().map(drop)
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        match (&mut self.size, &mut self.threshold) {
            (Some(size), _) => Some(Tunable::Sizes(vec![size])),
            (None, threshold) => threshold.as_mut().map(Tunable::Threshold),
        }
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct SqueezedAttentionSelector {
    config: SqueezedAttention,
    rule: ThresholdRule,
    coarse_rule: Option<ThresholdRule>,
    site: Site,
    /// Clustered context. It never changes once it is set, so that forks share it.
    context: Option<Arc<Context>>,
}

impl Selector for SqueezedAttentionSelector {
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        if self.context.is_none() && prompt.keys.len() > self.config.window.get().into() {
            self.context = Some(Arc::new(Context::new(self, prompt)));
        }
    }

    fn needs_prompt(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.context.as_ref().map_or(0, |context| context.bytes())
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("clusters the keys of its own sequence")
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let Some(context) = &self.context else {
            return picks.take_range(0..row.visible());
        };
        context.take(&HeadQuery::from(row), picks);
        picks.take_range(context.tokens()..row.visible());
    }
}

register!(
    Selector,
    "squeezed-attention",
    SqueezedAttention,
    "the clusters of a fixed context whose mean key has a large score, and all tokens after it"
);

#[cfg(test)]
mod tests;
