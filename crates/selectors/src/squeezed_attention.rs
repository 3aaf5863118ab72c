//! `squeezed-attention`: of a fixed context the clusters of tokens whose mean key has a large score, and everything after it.
//!
//! At the end of the first prompt that is longer than `window`, the tokens before its last `window` are clustered by the directions
//! of their keys. With `c` the mean of a cluster's keys and `N` their number, each of its tokens scores
//!
//! ```text
//! score = exp(q·c) / Σ over the clusters  N exp(q·c)
//! ```
//!
//! so that the scores of all tokens add up to 1. Clusters whose score exceeds a threshold are taken whole, and so are the last
//! `window` tokens of that prompt and whatever comes later, be it tokens or prompts: the question, and what is generated.
//! Without such a prompt everything is taken.
//!
//! # The threshold
//! Either `threshold` is given, one number for all heads and layers, so that heads whose attention is spread read more; or `size` is,
//! and at the end of the prompt each KV head finds its own threshold: what `size` of the context's tokens exceed, by their scores on the
//! average over the last `window` queries of the prompt, for all query heads of the KV head together.
//! The authors find one threshold so for all heads and layers, which no worker of one KV head can; `--density` finds
//! such a `threshold` for a share to be read of a trace.
//!
//! # Two levels
//! With `coarse` the mean keys are clustered again, and the mean key of all tokens of a coarse cluster is looked at first. Only the
//! clusters within coarse ones that exceed a threshold of their own are looked at; in the sum a coarse cluster that does not stands for all
//! of its tokens.
//!
//! Cost: O(clusters · head_dim) per query head, with `coarse` only of the coarse clusters and of those within the ones that pass; O(visible)
//! to take tokens. An index of 4 bytes per token and `4 · head_dim` per cluster. The end of the prompt costs O(iterations · context · clusters ·
//! head_dim) once, less if nothing moves any more.
//!
//! # Guarantee
//! None by itself: a mean says less than its cluster holds, as `N exp(q·c) ≤ Σ exp(q·k)`, so a cluster may hide a heavy token among light
//! ones. An estimator after it samples the clusters that were not taken.
//!
//! Departures from the paper: k-means starts at different keys in a random order, the authors' at ones that are far apart (k-means++);
//! thresholds found for a `size` are of each KV head; how the coarse level finds its threshold, and what stands for what
//! it prunes, is our own choice.
//!
//! Hooper, Kim, Mohammadzadeh, Maheswaran, Zhao, Paik, Mahoney, Keutzer, Gholami (2024), "Squeezed Attention: Accelerating Long Context
//! Length LLM Inference", <https://arxiv.org/abs/2411.09688>.

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

use context::Context;

/// The clusters of a fixed context whose mean key has a large score.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqueezedAttention {
    /// How many tokens of the context pass for the prompt's last queries, on average: a share is of the context. This or `threshold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// The score that a token's cluster must exceed, the same at all heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Fraction>,
    /// How many clusters, a share is of the context's tokens.
    #[serde(default = "twentieth")]
    pub clusters: Size,
    /// A level above the clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coarse: Option<Coarse>,
    /// The last tokens of the prompt, which are not clustered, and whose queries tell what is a large score.
    #[serde(default = "hundred")]
    pub window: NonZeroU16,
    /// The most times that the centroids are moved.
    #[serde(default = "ten")]
    pub iterations: u16,
}

/// Clusters of clusters, which are looked at first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Coarse {
    /// How many tokens pass for the prompt's last queries, on average, as of the level below. This or `threshold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// The score that a coarse cluster must exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Fraction>,
    /// How many coarse clusters, a share is of the context's tokens.
    #[serde(default = "hundredth")]
    pub clusters: Size,
}

/// A share of the tokens that is between 0 and 1.
fn share(share: f64) -> Size {
    Size::Share(Fraction::try_from(share).expect("it is between 0 and 1"))
}

/// 5 %, as the authors have.
fn twentieth() -> Size {
    share(0.05)
}

/// 1 %, as the authors have.
fn hundredth() -> Size {
    share(0.01)
}

/// 100, as the authors have.
fn hundred() -> NonZeroU16 {
    const { NonZeroU16::new(100).unwrap() }
}

fn ten() -> u16 {
    10
}

/// What a score must exceed.
#[derive(Clone, Copy, Debug)]
enum Bar {
    /// The threshold that this share of the tokens exceeds on average.
    Size(Size),
    /// This.
    Threshold(f64),
}

impl Bar {
    /// One of two fields, which are those of `level`.
    fn of(size: Option<Size>, threshold: Option<Fraction>, level: &str) -> Result<Self> {
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
    /// What the two levels' scores must exceed.
    fn bars(&self) -> Result<(Bar, Option<Bar>)> {
        let coarse =
            self.coarse.map(|it| Bar::of(it.size, it.threshold, "`coarse`")).transpose()?;
        Ok((Bar::of(self.size, self.threshold, "it")?, coarse))
    }
}

#[typetag::serde(name = "squeezed-attention")]
impl SelectorConfig for SqueezedAttention {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let (bar, coarse_bar) = self.bars()?;
        let config = self.clone();
        Ok(Box::new(SqueezedAttentionSelector {
            config,
            bar,
            coarse_bar,
            site: *site,
            context: None,
        }))
    }

    fn check(&self) -> Result<()> {
        self.bars().map(drop)
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        match (&mut self.size, &mut self.threshold) {
            (Some(size), _) => Some(Tunable::Sizes(vec![size])),
            (None, threshold) => threshold.as_mut().map(Tunable::Threshold),
        }
    }
}

#[derive(Clone)]
struct SqueezedAttentionSelector {
    config: SqueezedAttention,
    bar: Bar,
    coarse_bar: Option<Bar>,
    site: Site,
    /// Once there is one it never changes, so forks share it.
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

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let Some(context) = &self.context else {
            return picks.take_range(0..row.visible());
        };
        context.take(row.query(), picks);
        picks.take_range(context.tokens()..row.visible());
    }
}

register!(
    Selector,
    "squeezed-attention",
    SqueezedAttention,
    "of a fixed context the clusters whose mean key has a large score, and all after it"
);

#[cfg(test)]
mod tests;
