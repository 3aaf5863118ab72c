//! `inf-llm`: the blocks of tokens whose representatives have the largest scores.
//!
//! A block has `block` tokens. Its representatives are the `representatives` tokens of the block
//! that received the most attention from the `window` tokens after them; ties go to the lower
//! index. The key of the block is the mean of the representatives' keys. As long as no token of the
//! block has received attention, all its tokens represent it. A token has the score of its block:
//!
//! ```text
//! score = Σ over the group  q · mean of the representatives' keys
//! ```
//!
//! The selector picks the `size` best tokens not yet picked, the lower index first within a block,
//! so that the last block may be picked in part. A row that sees part of a block
//! ranks the block by that part.
//!
//! The attention is that of a prompt's last queries and of every later step, over the tokens that
//! were read, sampled or not.
//!
//! Cost: O(visible · head_dim / block) per row. The index takes `4 · head_dim / block` bytes per
//! token and 8 for each token in the window. After a step, the selector passes once over the tokens
//! that were read, and reads `representatives` keys for each block of the window that was read.
//!
//! # Guarantee
//! The selector alone guarantees nothing: a mean of keys bounds nothing. An estimator
//! after the selector can sample the other blocks and make a promise, as after any selector. The
//! promise assumes that the sample reveals the tail of the remaining weights. A block that hides a
//! heavy token among light ones can violate this assumption. Keys and values of all blocks must be
//! stored, possibly in slower memory, as the authors do.
//!
//! Departures from the paper: the paper's keys are not rotated, and it reads all blocks as if they
//! had the same distance to the query, while here every token keeps its position. The paper picks
//! whole blocks for all heads of a layer; this selector picks `size` tokens per KV head. The paper
//! picks only blocks that have left the window; here every block may be picked, because a `window`
//! selector before this one picks the near tokens. For tokens appended in bulk, only the attention
//! of the observed prompt queries is known, so that distant tokens have received none.
//!
//! Xiao, Zhang, Han, Xiao, Lin, Zhang, Liu, Sun (2024), "InfLLM: Training-Free Long-Context
//! Extrapolation for LLMs with an Efficient Context Memory", <https://arxiv.org/abs/2402.04617>.

mod blocks;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{AttentionWeights, PromptQueries, Tunable},
    register, typetag,
};

use crate::prompt_attention::{for_each_row, round_weight};
use blocks::MemoryBlocks;

/// Blocks of tokens whose representatives have the largest scores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InfLlm {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of tokens in a block.
    #[serde(default = "block")]
    pub block: NonZeroUsize,
    /// Number of a block's tokens that represent it.
    #[serde(default = "representatives")]
    pub representatives: NonZeroUsize,
    /// Number of most recent tokens for which a query's attention counts.
    #[serde(default = "window")]
    pub window: NonZeroUsize,
}

/// Default of `block`, the authors' 128.
fn block() -> NonZeroUsize {
    NonZeroUsize::new(128).expect("128 is not 0")
}

/// Default of `representatives`, the authors' 4.
fn representatives() -> NonZeroUsize {
    NonZeroUsize::new(4).expect("4 is not 0")
}

/// Default of `window`, the authors' 4096.
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

    fn is_rotation_invariant(&self) -> bool {
        true
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
        for_each_row(prompt, usize::MAX, &tokens, |row| {
            let near = (row.position + 1).saturating_sub(self.window);
            for (token, &weight) in row.weights.iter().enumerate().skip(near) {
                self.blocks.attend(token, round_weight(weight));
            }
        });
        self.blocks.renew(prompt.keys);
        self.blocks.settle((prompt.keys.len()).saturating_sub(self.window));
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        let near = row.visible().saturating_sub(self.window);
        let first = attended.tokens.partition_point(|&token| (token as usize) < near);
        for (&token, &weight) in attended.tokens.iter().zip(attended.weights).skip(first) {
            self.blocks.attend(token as usize, round_weight(weight));
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

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("learns from the attention of its own sequence")
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
    "the blocks of tokens whose most attended keys have the largest mean score"
);

#[cfg(test)]
mod tests;
