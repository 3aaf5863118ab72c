//! `h2o`: the tokens that received the most attention so far, and the most recent ones. Evicted
//! tokens never come back.
//!
//! Every observed row of attention adds to the scores of its tokens:
//!
//! ```text
//! score_i = Σ over rows  w_i / Σ_kept w    w = exp(q·k)
//! ```
//!
//! The rows are those of a prompt's last queries and of every later step, at all query heads of the
//! group. If more than `heavy + recent` tokens are kept after a prompt or a step, the tokens with
//! the lowest scores are evicted, except for the last `recent`; among equal scores the higher index
//! is evicted first. A size given as a share is taken of all tokens visible so far. Until the first
//! prompt or step, everything is kept, because no attention has been observed.
//!
//! Picks are the kept tokens that are visible. Rows are normalised over the kept tokens, whatever
//! else was read, so that neither a sample nor other selectors change which tokens are evicted.
//!
//! Cost: O(kept) per row and step, without reading keys. The index takes 12 bytes per kept token. A
//! prompt of P queries costs P more rows of attention per query head.
//!
//! # Memory
//! Keys and values of evicted tokens are freed with
//! [`Options::free_evicted`](vattention_core::Options::free_evicted) if nothing else in the
//! pipeline may read them.
//!
//! # Guarantee
//! The selector alone guarantees nothing: an evicted token that is needed later is lost. By
//! default, the backends of this workspace keep the keys and values of evicted tokens, so that an
//! estimator after `h2o` can sample them and make a promise, as after any selector. All keys and
//! values must then be stored, possibly in slower memory, so that H2O saves reads but no memory.
//! The promise assumes that the sample reveals the tail of the remaining weights. `h2o` can violate
//! this assumption, because it evicts heavy tokens that few queries need. If `ratio` directly
//! follows `h2o`, `verify` contradicts its promise of epsilon 0.1 and delta 0.1 on the trace in
//! `data`, although the pipeline reads 59 % of the tokens. With `oracle-top-k` of size 0.02 between
//! the two the promise holds, and the pipeline reads 29 %.
//!
//! Departures from the paper: its scores begin with the column sums of the whole prompt's
//! attention, ours with those of the prompt queries that are observed; its sets are per head, ours
//! per KV head, with scores summed over the group; its sizes are shares of the prompt, ours of all
//! tokens so far. As in the paper, sums favour early tokens.
//!
//! Zhang, Sheng, Zhou, Chen, Zheng, Cai, Song, Tian, Ré, Barrett, Wang, Chen (2023), "H2O: Heavy-
//! Hitter Oracle for Efficient Generative Inference of Large Language Models",
//! <https://arxiv.org/abs/2306.14048>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{AttentionWeights, PromptQueries, Tunable},
    register, typetag,
};

use crate::kept_tokens::KeptTokens;
use crate::prompt_attention::for_each_row;
use crate::received_attention::ReceivedAttention;

/// Tokens that received the most attention, and the most recent ones.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct H2o {
    /// Number of tokens kept for the attention that they received.
    #[serde(default = "tenth")]
    pub heavy: Size,
    /// Number of most recent tokens kept whatever attention they received.
    #[serde(default = "tenth")]
    pub recent: Size,
}

/// Default of both sizes, the authors' tenth.
fn tenth() -> Size {
    Size::Share(Fraction::try_from(0.1).expect("0.1 is between 0 and 1"))
}

#[typetag::serde(name = "h2o")]
impl SelectorConfig for H2o {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        let (kept, received) = (KeptTokens::default(), ReceivedAttention::default());
        Ok(Box::new(H2oSelector { config: self.clone(), kept, max_visible: 0, received }))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.heavy, &mut self.recent]))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct H2oSelector {
    config: H2o,
    kept: KeptTokens,
    /// Largest number of tokens visible to a query so far. Later tokens are not evicted yet.
    max_visible: usize,
    received: ReceivedAttention,
}

impl H2oSelector {
    /// Evicts the excess tokens after a query that saw the first `visible` tokens.
    fn evict(&mut self, visible: usize) {
        self.max_visible = self.max_visible.max(visible);
        let (heavy, recent) = (
            self.config.heavy.to_tokens(self.max_visible),
            self.config.recent.to_tokens(self.max_visible),
        );
        let old = self.kept.before(self.max_visible - recent);
        if old <= heavy {
            return;
        }
        let stay = self.kept.evict(old, heavy, &self.received.scores(old));
        self.received.retain(&stay);
    }
}

impl Selector for H2oSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.kept.append(new);
        self.received.resize(self.kept.tokens().len());
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let kept = self.kept.tokens().to_vec();
        for_each_row(prompt, usize::MAX, &kept, |row| {
            self.received.add(row.weights.iter().copied());
        });
        self.evict(prompt.keys.len());
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        self.received.add_attended(self.kept.tokens(), attended);
        if row.member() + 1 == row.site().shape.group() {
            self.evict(row.visible());
        }
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn group_wide(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.kept.bytes() + self.received.bytes()
    }

    fn live(&self, live: &mut Picks) {
        self.kept.take(live);
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("learns from the steps of its own sequence")
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        self.kept.take(picks);
    }
}

register!(
    Selector,
    "h2o",
    H2o,
    "the tokens that received the most attention so far and the most recent; evicts the others \
     for good"
);

#[cfg(test)]
mod tests;
