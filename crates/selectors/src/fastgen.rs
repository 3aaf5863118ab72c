//! `fastgen`: at each KV head the cheapest of five policies that recovers enough of the prompt's attention; what a policy evicts never comes
//! back.
//!
//! The policies, each of which keeps what those before it keep, and more:
//!
//! ```text
//! 1  special tokens
//! 2  … and punctuation
//! 3  … and those that have received the most attention, `frequent` in all
//! 4  … and the last `local`
//! 5  everything
//! ```
//!
//! When the first prompt is shown, the head takes the first policy whose tokens `S` have
//!
//! ```text
//! mean over rows of  Σ_{i ∈ S} A_i  ≥  recover        A = softmax of the row's logits
//! ```
//!
//! over the rows of the prompt's last queries and of the query heads of the group. `1 − Σ_S A` is the total variation between a row and the same
//! row over `S` alone. After that the policy stays, and after each prompt and each step it
//! evicts what it does not keep, new tokens too: a token is read at its own step at least. What has received the most attention is ranked
//! among all tokens that are there, of any class, lower index first among equals, by the sum over rows of the softmax over what is
//! there. Both sizes are of all tokens that were visible so far. Until a prompt is shown, everything is kept.
//!
//! The policy is chosen for a KV head, not for a query head, because what is kept is one set for the group; by the mean, because that
//! weighs rows alike, as the sums by which tokens are ranked do.
//!
//! Picks are what is kept, as far as it is visible. Tokens need [classes](vattention_core::TokenClass).
//!
//! Cost: O(kept) per row and step, no key is read to choose; 13 bytes of index per token kept. A prompt of P queries is P more rows of
//! attention per query head.
//!
//! # Memory
//! Keys and values of evicted tokens are freed with [`Options::free_evicted`](vattention_core::Options::free_evicted),
//! if nothing else in the pipeline may read them. Rows are freed in pages of 16 tokens, and punctuation is spread over a text: of a prose in which one token of eight is punctuation few pages are free.
//!
//! # Guarantee
//! None by itself: what is recovered is of the prompt's rows, and a token that was evicted and is needed later is lost, unless a sample of
//! the evicted ones follows. On the text of the trace in `data`, `ratio` at 0.1 and 0.1 straight after it is contradicted by `verify`, in single
//! rows; with the sampler `priority` it holds.
//!
//! Departures from the paper: one policy per KV head; the rows of the attention map are those of the prompt queries that are shown, not all;
//! the norm by which maps are compared is not said there, and is the total variation here.
//!
//! Ge, Zhang, Liu, Zhang, Han, Gao (2023), "Model Tells You What to Discard: Adaptive KV Cache Compression for LLMs",
//! <https://arxiv.org/abs/2310.01801>, equation 1, algorithms 1 and 2.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, TokenClass,
    plugin::{Attended, PromptQueries, Tunable},
    register, typetag,
};

use crate::kept::{KeptTokens, keep};
use crate::learned::each_row;
use crate::received::Received;

/// The cheapest policy that recovers enough of the prompt's attention, at each KV head.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FastGen {
    /// The share of the prompt's attention that a policy must recover.
    #[serde(default = "recover")]
    pub recover: Fraction,
    /// How many tokens are kept for their attention by policies that keep any for it.
    #[serde(default = "share")]
    pub frequent: Size,
    /// How many of the last tokens are kept by a policy that keeps any of them.
    #[serde(default = "share")]
    pub local: Size,
}

fn recover() -> Fraction {
    Fraction::try_from(0.95).expect("0.95 is between 0 and 1")
}

/// 0.3, as the authors have.
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
}

/// What is kept, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Policy {
    Special,
    Punctuation,
    Frequent,
    Local,
    Full,
}

impl Policy {
    /// All but the last, which recovers everything.
    const CHEAPER: [Self; 4] = [Self::Special, Self::Punctuation, Self::Frequent, Self::Local];

    /// Whether it keeps all tokens of a class.
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
    /// Once a prompt has been shown.
    policy: Option<Policy>,
    kept: KeptTokens,
    /// Of those kept.
    classes: Vec<TokenClass>,
    received: Received,
    /// Tokens that a query could have looked at; those after them are not judged yet.
    seen: usize,
}

impl FastgenSelector {
    fn new(config: FastGen) -> Self {
        let (kept, received) = (KeptTokens::default(), Received::default());
        Self { config, policy: None, kept, classes: Vec::new(), received, seen: 0 }
    }

    /// Of the tokens kept those that a policy keeps, as places; of all that were seen, which are the first ones.
    fn stay(&self, policy: Policy) -> Picks {
        let old = self.kept.before(self.seen);
        let mut stay = Picks::new(old);
        if policy >= Policy::Frequent {
            stay.take_top(self.config.frequent.to_tokens(self.seen), &self.received.scores(old));
        }
        if policy >= Policy::Local {
            stay.take_range(
                self.kept.before(self.seen - self.config.local.to_tokens(self.seen))..old,
            );
        }
        stay.take_all((0..old).filter(|&place| policy.keeps(self.classes[place])));
        stay
    }

    /// The cheapest policy that recovers enough. `mass` is the mean attention that each of the tokens kept has received, `[kept]`.
    fn choose(&self, mass: &[f64]) -> Policy {
        let enough = |&policy: &Policy| {
            let lost: f64 = self.stay(policy).residual().map(|place| mass[place]).sum();
            1.0 - lost >= self.config.recover.get()
        };
        Policy::CHEAPER.into_iter().find(enough).unwrap_or(Policy::Full)
    }

    /// Evicts what the policy does not keep, after a query that saw the first `seen` tokens.
    fn evict(&mut self, seen: usize) {
        self.seen = self.seen.max(seen);
        let Some(policy) = self.policy.filter(|&policy| policy != Policy::Full) else { return };
        let stay = self.stay(policy);
        let old = stay.visible();
        self.kept.retain(&stay);
        keep(&mut self.classes, old, &stay);
        self.received.keep(&stay);
    }
}

impl Selector for FastgenSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let classes = new.classes.expect("a pipeline shows classes to selectors that need them");
        self.kept.append(new);
        self.classes.extend_from_slice(classes);
        self.received.resize(self.kept.tokens().len());
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let kept = self.kept.tokens().to_vec();
        let (mut mass, mut rows) = (vec![0.0; kept.len()], 0.0);
        each_row(prompt, usize::MAX, &kept, |_, weights| {
            self.received.add(weights.iter().copied());
            mass.iter_mut().zip(weights).for_each(|(mass, &weight)| *mass += f64::from(weight));
            rows += 1.0;
        });
        self.seen = self.seen.max(prompt.keys.len());
        if self.policy.is_none() && rows > 0.0 {
            let mean: Vec<f64> = mass.iter().map(|mass| mass / rows).collect();
            self.policy = Some(self.choose(&mean));
        }
        self.evict(prompt.keys.len());
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &Attended<'_>) {
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

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        self.kept.take(picks);
    }
}

register!(
    Selector,
    "fastgen",
    FastGen,
    "what the cheapest policy keeps that recovers the prompt's attention at this head; the rest is gone for good"
);

#[cfg(test)]
mod tests;
