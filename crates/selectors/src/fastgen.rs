//! `fastgen`: at each KV head, the tokens kept by the cheapest of five policies that recovers
//! enough of the prompt's attention. Evicted tokens never come back.
//!
//! Each policy keeps the tokens of the policies before it, and more:
//!
//! ```text
//! 1  special tokens
//! 2  … and punctuation
//! 3  … and the `frequent` tokens, of any class, that received the most attention
//! 4  … and the last `local` tokens
//! 5  everything
//! ```
//!
//! When the first prompt is observed, the head adopts the first policy whose tokens `S` satisfy
//!
//! ```text
//! mean over rows of  Σ_{i ∈ S} A_i  ≥  recover        A = softmax of the row's logits
//! ```
//!
//! The rows are those of the prompt's last queries at all query heads of the group. `1 − Σ_S A` is
//! the total variation distance between a row and the same row normalised over `S`. The policy then
//! stays fixed. After each prompt and each step, the selector evicts all tokens that the policy
//! does not keep, new tokens included, so that a token is read at least at its own step.
//!
//! Policies 3 and 4 rank all kept tokens of any class by the sum over rows of the softmax over the
//! kept tokens; ties go to the lower index. A size given as a share is taken of all tokens visible
//! so far. Until a prompt is observed, everything is kept.
//!
//! The policy is chosen per KV head, not per query head, because the group shares one set of kept
//! tokens. It is chosen by the mean because the mean weighs all rows alike, as the sums that rank
//! the tokens do.
//!
//! Picks are the kept tokens that are visible. Tokens need [classes](vattention_core::TokenClass).
//!
//! Cost: O(kept) per row and step, without reading keys. The index takes 13 bytes per kept token. A
//! prompt of P queries costs P more rows of attention per query head.
//!
//! # Memory
//! Keys and values of evicted tokens are freed with
//! [`Options::free_evicted`](vattention_core::Options::free_evicted) if nothing else in the
//! pipeline may read them. Rows are freed in pages of 16 tokens. Few pages become free in prose
//! where one token in eight is punctuation, because punctuation is spread over the text.
//!
//! # Guarantee
//! The selector alone guarantees nothing: the recovered attention is that of the prompt's rows, and
//! an evicted token that is needed later is lost unless the evicted tokens are sampled afterwards.
//! If `ratio` directly follows this selector, `verify` contradicts its promise of epsilon 0.1 and
//! delta 0.1 in single rows, on the text of the trace in `data`. With the sampler `priority` the
//! promise holds.
//!
//! Departures from the paper: there is one policy per KV head; the attention map has only the rows
//! of the prompt queries that are observed; the paper does not say by which norm maps are compared,
//! and here it is the total variation distance.
//!
//! Ge, Zhang, Liu, Zhang, Han, Gao (2023), "Model Tells You What to Discard: Adaptive KV Cache
//! Compression for LLMs", <https://arxiv.org/abs/2310.01801>, equation 1, algorithms 1 and 2.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, TokenClass,
    plugin::{AttentionWeights, PromptQueries, Tunable},
    register, typetag,
};

use crate::kept_tokens::{KeptTokens, retain_places};
use crate::prompt_attention::for_each_row;
use crate::received_attention::ReceivedAttention;

/// Tokens kept by the cheapest policy that recovers enough of the prompt's attention, per KV head.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FastGen {
    /// Share of the prompt's attention that a policy must recover.
    #[serde(default = "recover")]
    pub recover: Fraction,
    /// Number of tokens that a policy keeps for the attention that they received.
    #[serde(default = "share")]
    pub frequent: Size,
    /// Number of most recent tokens that a policy keeps.
    #[serde(default = "share")]
    pub local: Size,
}

fn recover() -> Fraction {
    Fraction::try_from(0.95).expect("0.95 is between 0 and 1")
}

/// Default of both sizes, the authors' 0.3.
fn share() -> Size {
    Size::Share(Fraction::try_from(0.3).expect("0.3 is between 0 and 1"))
}

#[typetag::serde(name = "fastgen")]
impl SelectorConfig for FastGen {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(FastgenSelector::new(self.clone())))
    }

    fn needs_classes(&self) -> bool {
        true
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Mass(&mut self.recover))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

/// Policies, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Policy {
    Special,
    Punctuation,
    Frequent,
    Local,
    Full,
}

impl Policy {
    /// All policies but the last, which recovers everything.
    const CHEAPER: [Self; 4] = [Self::Special, Self::Punctuation, Self::Frequent, Self::Local];

    /// Returns true if the policy keeps all tokens of a class.
    fn keeps(self, class: TokenClass) -> bool {
        match class {
            TokenClass::Special => true,
            TokenClass::Punctuation => self >= Self::Punctuation,
            TokenClass::Other => self == Self::Full,
        }
    }
}

#[derive(Clone)]
struct FastgenSelector {
    config: FastGen,
    /// Chosen policy; `None` until a prompt is observed.
    policy: Option<Policy>,
    kept: KeptTokens,
    /// Classes of the kept tokens.
    classes: Vec<TokenClass>,
    received: ReceivedAttention,
    /// Largest number of tokens visible to a query so far. Later tokens are not evicted yet.
    max_visible: usize,
}

impl FastgenSelector {
    fn new(config: FastGen) -> Self {
        let (kept, received) = (KeptTokens::default(), ReceivedAttention::default());
        Self { config, policy: None, kept, classes: Vec::new(), received, max_visible: 0 }
    }

    /// Chooses among the kept tokens that were visible to a query so far, which are the first ones
    /// of the list. Returns the places in the list of the tokens that a policy keeps.
    fn choose_places(&self, policy: Policy) -> Picks {
        let old = self.kept.before(self.max_visible);
        let mut stay = Picks::new(old);
        if policy >= Policy::Frequent {
            stay.take_top(
                self.config.frequent.to_tokens(self.max_visible),
                &self.received.scores(old),
            );
        }
        if policy >= Policy::Local {
            stay.take_range(
                self.kept.before(self.max_visible - self.config.local.to_tokens(self.max_visible))
                    ..old,
            );
        }
        stay.take_all((0..old).filter(|&place| policy.keeps(self.classes[place])));
        stay
    }

    /// Returns the cheapest policy that recovers enough. `mass` is the mean attention received by
    /// each kept token, `[kept]`.
    fn choose_policy(&self, mass: &[f64]) -> Policy {
        let enough = |&policy: &Policy| {
            let lost: f64 = self.choose_places(policy).residual().map(|place| mass[place]).sum();
            1.0 - lost >= self.config.recover.get()
        };
        Policy::CHEAPER.into_iter().find(enough).unwrap_or(Policy::Full)
    }

    /// Evicts the tokens that the policy does not keep, after a query that saw the first `visible`
    /// tokens.
    fn evict(&mut self, visible: usize) {
        self.max_visible = self.max_visible.max(visible);
        let Some(policy) = self.policy.filter(|&policy| policy != Policy::Full) else { return };
        let stay = self.choose_places(policy);
        let old = stay.visible();
        self.kept.retain(&stay);
        retain_places(&mut self.classes, old, &stay);
        self.received.retain(&stay);
    }
}

impl Selector for FastgenSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let classes = new.classes.expect("a pipeline passes classes to selectors that need them");
        self.kept.append(new);
        self.classes.extend_from_slice(classes);
        self.received.resize(self.kept.tokens().len());
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let kept = self.kept.tokens().to_vec();
        let (mut mass, mut rows) = (vec![0.0; kept.len()], 0.0);
        for_each_row(prompt, usize::MAX, &kept, |row| {
            self.received.add(row.weights.iter().copied());
            mass.iter_mut().zip(row.weights).for_each(|(mass, &weight)| *mass += f64::from(weight));
            rows += 1.0;
        });
        self.max_visible = self.max_visible.max(prompt.keys.len());
        if self.policy.is_none() && rows > 0.0 {
            let mean: Vec<f64> = mass.iter().map(|mass| mass / rows).collect();
            self.policy = Some(self.choose_policy(&mean));
        }
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

    fn needs_prompt(&self) -> bool {
        true
    }

    fn group_wide(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.kept.bytes() + size_of_val(&self.classes[..]) + self.received.bytes()
    }

    fn live(&self, live: &mut Picks) {
        self.kept.take(live);
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("learns from the prompt of its own sequence")
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        self.kept.take(picks);
    }
}

register!(
    Selector,
    "fastgen",
    FastGen,
    "the tokens kept by the cheapest policy that recovers the prompt's attention at this head; \
     evicts the others for good"
);

#[cfg(test)]
mod tests;
