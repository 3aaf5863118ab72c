//! `inf-llm`: the blocks of tokens whose representatives agree with the query.
//!
//! A block is `block` tokens. Its representatives are the `representatives` of them that have
//! received the most attention from the `window` tokens after them, lower index first among equals,
//! and its key is the mean of their keys. As long as no attention is known, all its tokens
//! represent it. A token scores as its block does:
//!
//! ```text
//! score = Σ over the group  q · mean of the representatives' keys
//! ```
//!
//! Takes the `size` best among the tokens not yet taken, the lower index first in a block: the last
//! block in part. A row that sees a part of a block ranks it by that part.
//!
//! Attention is that of a prompt's last queries, and of every step after it, over the tokens that
//! were read, sampled or not.
//!
//! Cost: O(visible · head_dim / block) per row, an index of `4 · head_dim / block` bytes per token
//! and 8 for each in the window; after a step, one pass over what was read, and `representatives`
//! keys for each block of the window that was read.
//!
//! # Guarantee
//! None by itself: a mean of keys bounds nothing. An estimator after it samples the other blocks,
//! with the promise of any estimator after any selector: that the sample has seen the tail of what
//! is left, where a block may hide a heavy token among light ones. Keys and values of all blocks must
//! be kept, in a slower memory perhaps, as the authors do.
//!
//! Departures from the paper, whose selection this is with true positions: its keys are not
//! rotated, and its blocks are all read as if at one distance, where here every token keeps its
//! position; it picks whole blocks for all heads of a layer, we pick `size` tokens for each KV head;
//! its blocks begin to count when they leave the window, ours at once, because a `window` selector
//! before this one takes what is near. For tokens that were appended in bulk, all attention that we
//! know is from the prompt queries that we are shown, and far ones have none.
//!
//! Xiao, Zhang, Han, Xiao, Lin, Zhang, Liu, Sun (2024), "InfLLM: Training-Free Long-Context
//! Extrapolation for LLMs with an Efficient Context Memory", <https://arxiv.org/abs/2402.04617>.

mod blocks;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{Attended, PromptQueries, Tunable},
    register, typetag,
};

use crate::learned::{each_row, rounded};
use blocks::MemoryBlocks;

/// The blocks whose representatives agree with the query.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InfLlm {
    /// How many tokens, beside those already taken.
    pub size: Size,
    /// How many tokens are in a block.
    #[serde(default = "block")]
    pub block: NonZeroUsize,
    /// How many of a block's tokens represent it.
    #[serde(default = "representatives")]
    pub representatives: NonZeroUsize,
    /// How near a token must be for its attention to count.
    #[serde(default = "window")]
    pub window: NonZeroUsize,
}

/// 128, as the authors have.
fn block() -> NonZeroUsize {
    NonZeroUsize::new(128).expect("128 is not 0")
}

/// 4, as the authors have.
fn representatives() -> NonZeroUsize {
    NonZeroUsize::new(4).expect("4 is not 0")
}

/// 4096, as the authors have.
fn window() -> NonZeroUsize {
    NonZeroUsize::new(4096).expect("4096 is not 0")
}

#[typetag::serde(name = "inf-llm")]
impl SelectorConfig for InfLlm {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let blocks =
            MemoryBlocks::new(self.block.get(), self.representatives.get(), site.shape.head_dim);
        Ok(Box::new(InfLlmSelector { size: self.size, window: self.window.get(), blocks }))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

#[derive(Clone)]
struct InfLlmSelector {
    size: Size,
    window: usize,
    blocks: MemoryBlocks,
}

impl Selector for InfLlmSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.blocks.append(new.keys);
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let tokens: Vec<u32> = (0..prompt.keys.len() as u32).collect();
        each_row(prompt, usize::MAX, &tokens, |position, weights| {
            let near = (position + 1).saturating_sub(self.window);
            for (token, &weight) in weights.iter().enumerate().skip(near) {
                self.blocks.attend(token, rounded(weight));
            }
        });
        self.blocks.renew(prompt.keys);
        self.blocks.settle((prompt.keys.len()).saturating_sub(self.window));
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &Attended<'_>) {
        let near = row.visible().saturating_sub(self.window);
        let first = attended.tokens.partition_point(|&token| (token as usize) < near);
        for (&token, &weight) in attended.tokens.iter().zip(attended.weights).skip(first) {
            self.blocks.attend(token as usize, rounded(weight));
        }
        if row.member() + 1 == row.site().shape.group() {
            self.blocks.renew(row.keys());
            self.blocks.settle(near);
        }
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn group_wide(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.blocks.bytes()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let query = row.group().sum_axis(vattention_core::ndarray::Axis(0)).to_vec();
        let scores = self.blocks.scores(&query, row.keys());
        picks.take_top(self.size.to_tokens(row.visible()), &scores);
    }
}

register!(
    Selector,
    "inf-llm",
    InfLlm,
    "blocks of tokens, by the mean key of those that received the most attention"
);

#[cfg(test)]
mod tests;
