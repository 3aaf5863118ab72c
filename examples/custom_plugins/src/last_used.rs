//! `last-used`: the tokens that were used most recently; the others are evicted and never return.
//!
//! A row of attention *uses* a token if the token's weight is at least the mean weight of the
//! tokens that the row reads. A new token counts as used. After each prompt and each step, the
//! tokens whose last use is the longest ago are evicted until `size` tokens remain.
//!
//! Cost: O(tokens) per step, without reading a key to select; 8 bytes of index per stored token.
//!
//! # Guarantee
//! None: an evicted token may be needed later.

use serde::{Deserialize, Serialize};
use vattention::plugin::{
    AttentionWeights, NewTokens, Picks, PromptQueries, Result, Row, Selector, SelectorConfig, Site,
    Size, Tunable, register, schemars, typetag,
};

/// The tokens that were used most recently.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LastUsed {
    /// Number of tokens that remain after an eviction.
    pub size: Size,
}

#[typetag::serde(name = "last-used")]
impl SelectorConfig for LastUsed {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(LastUsedSelector { size: self.size, stored: Vec::new() }))
    }

    // Density searches vary the size.
    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

/// State of one KV head.
#[derive(Clone)]
struct LastUsedSelector {
    size: Size,
    /// Tokens that were not evicted, ascending by position.
    stored: Vec<StoredToken>,
}

#[derive(Clone, Copy)]
struct StoredToken {
    position: u32,
    /// Position of the last query that used the token.
    used: u32,
}

impl LastUsedSelector {
    /// Records the attention of the query at position `visible - 1`.
    fn record(&mut self, visible: usize, tokens: &[u32], weights: &[f32]) {
        let mean = weights.iter().sum::<f32>() / weights.len() as f32;
        let mut stored = self.stored.iter_mut().peekable();
        for (&token, &weight) in tokens.iter().zip(weights) {
            while stored.next_if(|other| other.position < token).is_some() {}
            if let Some(found) = stored.next_if(|other| other.position == token)
                && weight >= mean
            {
                found.used = visible as u32 - 1;
            }
        }
    }

    /// Evicts tokens of the first `visible` ones until `size` of them remain. Later tokens stay,
    /// because no query could have used them yet.
    fn evict(&mut self, visible: usize) {
        let end = self.stored.partition_point(|token| (token.position as usize) < visible);
        let excess = end.saturating_sub(self.size.to_tokens(visible));
        let mut by_use: Vec<StoredToken> = self.stored[..end].to_vec();
        by_use.sort_by_key(|token| (token.used, token.position));
        let mut evicted: Vec<u32> = by_use[..excess].iter().map(|token| token.position).collect();
        evicted.sort_unstable();
        self.stored.retain(|token| evicted.binary_search(&token.position).is_err());
    }

    /// Adds the stored tokens to the picks, which ignore those that their row does not see.
    fn take(&self, picks: &mut Picks) {
        picks.take_all(self.stored.iter().map(|token| token.position as usize));
    }
}

impl Selector for LastUsedSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let positions = new.first as u32..(new.first + new.keys.len()) as u32;
        self.stored.extend(positions.map(|position| StoredToken { position, used: position }));
    }

    /// Computes the attention of the prompt's last queries, as if each had been a step.
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let tokens = prompt.keys.len();
        let all: Vec<u32> = (0..tokens as u32).collect();
        let queries = prompt.queries.dim().1;
        for query in 0..queries {
            let visible = tokens - queries + query + 1;
            for member in prompt.queries.outer_iter() {
                let mut weights = vec![0.0; visible];
                prompt.keys.dots(0..visible, &member.row(query).to_vec(), &mut weights);
                let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                for weight in &mut weights {
                    *weight = (*weight - largest).exp();
                }
                self.record(visible, &all[..visible], &weights);
            }
        }
        self.evict(tokens);
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        self.record(row.visible(), attended.tokens, attended.weights);
        let last_of_group = row.member() + 1 == row.site().shape.group();
        if last_of_group {
            self.evict(row.visible());
        }
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    // All query heads of a KV head share the state, so that one row selects for all of them.
    fn group_wide(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        size_of_val(&self.stored[..])
    }

    // Backends may free the keys and values of other tokens.
    fn live(&self, live: &mut Picks) {
        self.take(live);
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        self.take(picks);
    }
}

register!(Selector, "last-used", LastUsed, "the tokens used most recently; the others are evicted");

#[cfg(test)]
mod tests {
    use super::*;

    vattention_testkit::laws!(last_used, LastUsed { size: Size::Tokens(20) });

    #[test]
    fn the_token_that_was_not_used_is_evicted() {
        let stored = (0..4).map(|position| StoredToken { position, used: position }).collect();
        let mut selector = LastUsedSelector { size: Size::Tokens(3), stored };
        selector.record(4, &[0, 1, 2, 3], &[0.4, 0.1, 0.4, 0.1]);
        selector.evict(4);
        let positions: Vec<u32> = selector.stored.iter().map(|token| token.position).collect();
        assert_eq!(positions, [0, 2, 3]);
    }
}
