//! `retrieval-attention`: the best tokens found by a search in a graph that is built from the
//! queries of the prompt.
//!
//! Queries are not distributed like keys, so that a graph of similar keys does not lead a query to
//! its nearest keys. This graph links keys to which the same queries attend. At the end of a
//! prompt, each of its last queries lists its `neighbours` nearest keys, by product. Rank by rank,
//! each key of a list is linked in both directions with the list's first key and with the preceding
//! key, up to `degree` links per key. Each token is also linked with its neighbours in the text.
//! These links take no memory, and through them every token can be reached, including the tokens
//! after the prompt.
//!
//! A search begins at the newest token and at the nearest key of each query head's last query in
//! the prompt. It repeatedly expands the best token that it has met but not yet expanded: it scores
//! the tokens that are linked with this token, and has then met them, too. The search ends when the
//! next token to expand is worse than all of the `beam` best tokens met, where tokens already
//! picked do not count. The `size` best of the `beam` tokens are picked; ties go to the lower
//! token. Without a prompt everything is picked.
//!
//! Cost: a product for each token met (6 to 11 % of the keys for the best 100 of 6144, on the trace
//! in `data`). The keys are read one by one in random order. The index takes at most `4 · degree`
//! bytes per token of the prompt. The end of a prompt is O(group · queries · tokens · head_dim).
//!
//! # Guarantee
//! The selector alone guarantees nothing: a search may miss any token. A beam of all tokens finds
//! the exact top-k. Queries unlike those of the prompt find less. Tokens that the search did not
//! meet have no scores, so that no sampler can draw by them.
//!
//! Where the paper is not specific, the choices are our own: the keys of a list that are linked
//! (the paper projects lists of queries on keys, as RoarGraph does), the links along the text
//! instead of an insertion of new tokens, the tokens at which a search begins, and the use of a
//! prompt's last queries in place of all its queries.
//!
//! Liu, Chen, Chen, Zhang, et al. (2024), "RetrievalAttention: Accelerating Long-Context LLM
//! Inference via Vector Retrieval", <https://arxiv.org/abs/2409.10516>.

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

/// Best tokens found by a search in a graph of the prompt's keys.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrievalAttention {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of best tokens that a search keeps as candidates; absent, or below `size`: `size`. A
    /// larger beam finds more and costs more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beam: Option<Size>,
    /// Number of nearest keys that each of the prompt's last queries links.
    #[serde(default = "neighbours")]
    pub neighbours: NonZeroU16,
    /// Largest number of links of a key, those along the text excluded.
    #[serde(default = "degree")]
    pub degree: NonZeroU16,
}

/// Default of `neighbours`: 100, the number of keys that the authors retrieve.
fn neighbours() -> NonZeroU16 {
    const { NonZeroU16::new(100).unwrap() }
}

/// Default of `degree`: 32, which is usual for such graphs.
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

    fn is_rotation_invariant(&self) -> bool {
        true
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

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("learns a graph from the prompt of its own sequence")
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        self.config.tunable()
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
    "the best tokens found by a search in a graph of the prompt's keys"
);

#[cfg(test)]
mod tests;
