//! `tova`: the tokens to which the last query attends. Evicted tokens never come back.
//!
//! After a prompt and after each step, the tokens with the least attention from the last query are
//! evicted, until `size` are kept:
//!
//! ```text
//! score_i = Σ over the group  w_i / Σ_kept w    w = exp(q·k), q the last query
//! ```
//!
//! Among equal scores the higher index is evicted first. A size given as a share is taken of the
//! tokens that are visible to the query. Recent tokens are not protected: the newest one stays only
//! if its own query attends to it. Until the first prompt or step, everything is kept.
//!
//! Picks are the kept tokens that are visible. Rows are normalised over the kept tokens, whatever
//! else was read, so that neither a sample nor other selectors change which tokens are evicted.
//!
//! Cost: O(kept) per row and step, without reading keys. The index takes 12 bytes per kept token.
//! The end of a prompt costs one row of attention per query head.
//!
//! # Memory
//! Keys and values of evicted tokens are freed with
//! [`Options::free_evicted`](vattention_core::Options::free_evicted) if nothing else in the
//! pipeline may read them.
//!
//! # Guarantee
//! The selector alone guarantees nothing: a token that one query does not need is lost to all
//! later ones. By default, the backends of this workspace keep the keys and values of evicted
//! tokens, so that an estimator after `tova` can sample them and make a promise, which assumes that
//! the sample reveals the tail of the remaining weights.
//!
//! Departures from the paper: its weights are means over all heads of a layer, ours over the query
//! heads of a KV head; its prompts evict after each of their tokens, ours once, by the last query.
//!
//! Oren, Hassid, Yarden, Adi, Schwartz (2024), "Transformers are Multi-State RNNs",
//! <https://arxiv.org/abs/2401.06104>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{AttentionWeights, PromptQueries, Tunable},
    register, typetag,
};

use crate::kept_tokens::KeptTokens;
use crate::prompt_attention::for_each_row;
use crate::received_attention::ReceivedAttention;

/// Tokens to which the last query attends.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tova {
    /// Number of tokens that are kept.
    pub size: Size,
}

#[typetag::serde(name = "tova")]
impl SelectorConfig for Tova {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        let (kept, received) = (KeptTokens::default(), ReceivedAttention::default());
        Ok(Box::new(TovaSelector { size: self.size, kept, received }))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct TovaSelector {
    size: Size,
    kept: KeptTokens,
    /// Attention of the last query.
    received: ReceivedAttention,
}

impl TovaSelector {
    /// Forgets the attention of earlier queries.
    fn begin_query(&mut self) {
        self.received = ReceivedAttention::default();
        self.received.resize(self.kept.tokens().len());
    }

    /// Evicts the excess tokens after a query that saw the first `visible` tokens.
    fn evict(&mut self, visible: usize) {
        let size = self.size.to_tokens(visible);
        let seen = self.kept.before(visible);
        if seen > size {
            let stay = self.kept.evict(seen, size, &self.received.scores(seen));
            self.received.retain(&stay);
        }
    }
}

impl Selector for TovaSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.kept.append(new);
        self.received.resize(self.kept.tokens().len());
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        self.begin_query();
        let kept = self.kept.tokens().to_vec();
        for_each_row(prompt, 1, &kept, |row| self.received.add(row.weights.iter().copied()));
        self.evict(prompt.keys.len());
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        if row.member() == 0 {
            self.begin_query();
        }
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
    "tova",
    Tova,
    "the tokens to which the last query attends; evicts the others for good"
);

#[cfg(test)]
mod tests {
    use vattention_core::Fraction;
    use vattention_testkit::laws;

    use super::*;
    use crate::prompt_attention::testing::{GoldenStream, check_stream};

    laws!(size_in_tokens, Tova { size: Size::Tokens(9) });
    laws!(size_as_share, Tova { size: Size::Share(Fraction::try_from(0.3).unwrap()) });

    #[test]
    fn kept_tokens_match_the_golden_file() {
        #[derive(Deserialize)]
        struct Case {
            config: Tova,
            #[serde(flatten)]
            stream: GoldenStream,
        }
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../../../tests/golden/tova.json")).unwrap();
        assert_eq!(cases.len(), 3);
        for Case { config, stream } in cases {
            check_stream(&stream, &mut *config.build(&stream.site()).unwrap());
        }
    }
}
