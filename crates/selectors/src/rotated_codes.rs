//! `rotated-codes`: the tokens with the largest logits by 2-bit codes of the keys.
//!
//! Keys are encoded in blocks of 64 tokens. A key `k` is the mean `c` of its block and a residual,
//! which a random rotation `R` spreads over all elements and 2 bits for each element describe
//! ([`RotatedCodes`]):
//!
//! ```text
//! score = q·c + f (R q)·x ≈ q·k    x: the code of R (k − c), f = |k − c|² / (R (k − c)·x)
//! ```
//!
//! The selector picks the `size` best tokens not yet picked; ties go to the lower index. Tokens
//! after the last complete block are scored by their keys. With `score = "group"` scores are summed
//! over the group's query heads. `twilight` around this selector reduces its picks to a share of
//! their attention.
//!
//! Cost: one pass over `head_dim / 4 + 2` bytes per visible token for each query head, or for up to
//! four query heads together with `score = "group"`. The index takes these bytes and a 64th part of
//! a mean in bf16: 20 bytes per token for keys of 64 elements, 38 for 128. Appending a token is
//! O(head_dim log head_dim).
//!
//! # Guarantee
//! A score is an unbiased estimate of the logit, with a standard deviation of about
//! `0.37 |q| |k − c| / √head_dim` over the draw of the rotation. No bound on the tokens left over
//! follows from it for every input. The sampler `priority` uses the same codes, and takes their
//! errors into account. The rotation follows from the pipeline's seed.
//!
//! Departures from the paper: codes have 2 bits for each element instead of 1, as in the extended
//! RaBitQ; means are those of blocks instead of the whole prompt, so that they follow a text that
//! grows; the query is not centred; and a number of tokens is picked, while the authors pick the
//! fewest tokens that hold a share of the predicted attention.
//!
//! Li et al. (2026), "RaBitQCache: Rotated Binary Quantization for KVCache in Long Context LLM
//! Inference", <https://arxiv.org/abs/2606.31519>; codes: Gao, Long (2024), "RaBitQ",
//! <https://arxiv.org/abs/2405.12497>, theorem 3.2.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens, plugin::Tunable,
    register, step::Score, typetag,
};

use crate::predicted_logits::take_top_predicted;
use vattention_index::RotatedCodes;

/// Tokens with the largest logits by 2-bit codes of the keys.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotatedCodesTopK {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Scores to rank by: each query head's own, or the sum over its group.
    #[serde(default)]
    pub score: Score,
}

#[typetag::serde(name = "rotated-codes")]
impl SelectorConfig for RotatedCodesTopK {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let codes = RotatedCodes::new(site);
        Ok(Box::new(RotatedCodesSelector { size: self.size, score: self.score, codes }))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct RotatedCodesSelector {
    size: Size,
    score: Score,
    codes: RotatedCodes,
}

impl RotatedCodesSelector {
    /// Computes the score of each visible token.
    fn scores(&self, row: &Row<'_>) -> Vec<f32> {
        let rows: Vec<Row<'_>> = match self.score {
            Score::Head => vec![*row],
            Score::Group => row.members().collect(),
        };
        let visible = row.visible();
        let mut logits = vec![0.0; rows.len() * visible];
        let mut by_row: Vec<&mut [f32]> = logits.chunks_exact_mut(visible).collect();
        self.codes.logits(&rows, &Picks::new(visible), 1.0, &mut by_row);
        let (scores, others) = logits.split_at_mut(visible);
        for other in others.chunks_exact(visible) {
            scores.iter_mut().zip(other).for_each(|(score, logit)| *score += logit);
        }
        logits.truncate(visible);
        logits
    }
}

impl Selector for RotatedCodesSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.codes.append(&new.keys);
    }

    fn can_truncate(&self) -> bool {
        true
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.codes.truncate(keys);
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn share(&mut self) {
        self.codes.share();
    }

    fn group_wide(&self) -> bool {
        self.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.codes.bytes()
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let size = self.size.to_tokens(row.visible());
        take_top_predicted(row, picks, size, self.score, &self.scores(row));
    }
}

register!(
    Selector,
    "rotated-codes",
    RotatedCodesTopK,
    "the tokens with the largest logits by 2-bit codes of the keys"
);

#[cfg(test)]
mod tests;
