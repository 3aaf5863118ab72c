//! `retrieval-attention`: the best tokens that a search in a graph finds, which knows the queries of the prompt.
//!
//! Queries are not distributed like keys, so a graph that links similar keys leads a query nowhere. This one links keys that the
//! same queries attend to. At the end of a prompt, each of its last queries lists its `neighbours` nearest keys, by product. Rank by
//! rank, each key of a list is linked with the list's first key and with the key before it, both ways, up to `degree` links of a key.
//! Each token is also linked with the tokens before and after it in the text, which takes no memory, so that every token can be reached,
//! those after the prompt too.
//!
//! A search begins at the newest token and at the nearest key of each query head's last query in the prompt. It visits the links of the
//! best token that it has met and not yet left, until this token is worse than the `beam` best tokens met that are not taken before. The
//! `size` best of these are taken; of equal scores the lower token is the better. Without a prompt everything is taken.
//!
//! Cost: a product for each token met (6 to 11 % of the keys for the best 100 of 6144, on the trace in `data`), row by row in random
//! order; an index of at most `4 · degree` bytes per token of the prompt. The end of a prompt is O(group · queries · tokens · head_dim).
//!
//! # Guarantee
//! None by itself: a search may miss any token. A beam of all tokens finds the exact top-k. Queries unlike those of the prompt
//! find less. It has no scores for the tokens that it did not meet, so no sampler can draw by them.
//!
//! What the paper leaves open is our own: which keys of a list are linked (the paper projects lists of queries on keys, as RoarGraph does), the
//! links along the text in place of an insertion of new tokens, where a search begins, and that a prompt's last queries
//! stand for all of them.
//!
//! Liu, Chen, Chen, Zhang, et al. (2024), "RetrievalAttention: Accelerating Long-Context LLM Inference via Vector Retrieval",
//! <https://arxiv.org/abs/2409.10516>.

mod graph;

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{PromptQueries, Tunable},
    register, typetag,
};

use graph::Graph;

/// The best tokens that a search in a graph of the prompt's keys finds.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrievalAttention {
    /// How many tokens, beside those already taken.
    pub size: Size,
    /// How many of the best tokens a search keeps in sight, `size` at least, which it is without this field. More find more, and cost
    /// more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beam: Option<Size>,
    /// How many keys each of the prompt's last queries links.
    #[serde(default = "neighbours")]
    pub neighbours: NonZeroU16,
    /// The most links of a key, beside those along the text.
    #[serde(default = "degree")]
    pub degree: NonZeroU16,
}

/// 100, as many as the authors retrieve.
fn neighbours() -> NonZeroU16 {
    const { NonZeroU16::new(100).unwrap() }
}

/// 32, as is usual for such graphs.
fn degree() -> NonZeroU16 {
    const { NonZeroU16::new(32).unwrap() }
}

#[typetag::serde(name = "retrieval-attention")]
impl SelectorConfig for RetrievalAttention {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(RetrievalAttentionSelector { config: self.clone(), graph: None }))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

#[derive(Clone)]
struct RetrievalAttentionSelector {
    config: RetrievalAttention,
    graph: Option<Graph>,
}

impl Selector for RetrievalAttentionSelector {
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let [neighbours, degree] = [self.config.neighbours, self.config.degree];
        self.graph = Some(Graph::new(prompt, neighbours.get().into(), degree.get().into()));
    }

    fn needs_prompt(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.graph.as_ref().map_or(0, Graph::bytes)
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let Some(graph) = &self.graph else {
            return picks.take_range(0..row.visible());
        };
        let size = self.config.size.to_tokens(row.visible());
        let beam = self.config.beam.map_or(size, |beam| beam.to_tokens(row.visible()).max(size));
        let found = graph.search(row, beam, picks);
        picks.take_all(found.into_iter().take(size));
    }
}

register!(
    Selector,
    "retrieval-attention",
    RetrievalAttention,
    "the best tokens that a search in a graph of the prompt's keys finds"
);

#[cfg(test)]
mod tests;
