//! `ark-vale`: the tokens of the pages whose mean boxes reach the largest scores.
//!
//! Tokens form pages of `page` tokens. The box of a page lies around the middle `m_c` of the
//! smallest and the largest number of each channel over the keys of the page, and extends on both
//! sides by the mean distance of these numbers from it. A token's score is the largest product
//! that a key in the box can have with the query:
//!
//! ```text
//! score(page) = Σ_c max(q_c (m_c − r_c), q_c (m_c + r_c))   r_c: mean of |k_c − m_c| over the page
//! ```
//!
//! The boxes of `quest` contain all keys, so that one outlier makes a page attractive; these boxes
//! contain only the bulk of them. The selector picks the `size` best tokens not yet picked, that
//! is, whole pages and the first tokens of the last one; ties go to the lower index. With
//! `score = "group"` the scores of the group's query heads are added. A page of which only a part
//! is visible has the box of its visible keys.
//!
//! Cost: O(visible · head_dim / page) per row, each number read in 4 bytes. The index takes 8 bytes
//! per channel and page. Appending a token is O(head_dim).
//!
//! # Guarantee
//! The selector alone guarantees nothing: keys outside of a box can have larger products, so that a
//! score is no bound. An estimator after the selector depends on its sample to reveal the heavy
//! tokens of the other pages.
//!
//! Departures from the paper: all keys and values stay where they are, while the authors move pages
//! to another memory and back; a size is a number of new tokens, while the authors read whole
//! pages.
//!
//! Chen, Wang, Cao, Wu, Zheng, Li, Wei, Yan, Li, Liang (2024), "ArkVale: Efficient Generative LLM
//! Inference with Recallable Key-Value Eviction", NeurIPS 2024, the method "cuboid-mean".

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens, plugin::Tunable,
    register, step::Score, typetag,
};

use crate::block_scores::expand_to_tokens;
use crate::predicted_logits::take_top_predicted;
use crate::quest::page::{self, Page};
use vattention_index::{LabelBits, Labels, Rounding};

/// Tokens of the pages whose mean boxes reach the largest scores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArkVale {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of tokens in a page.
    #[serde(default = "default_page")]
    pub page: NonZeroUsize,
    /// Scores to rank by: each query head's own, or the sum over its group.
    #[serde(default)]
    pub score: Score,
}

/// Default of `page`, the authors' 32 tokens.
fn default_page() -> NonZeroUsize {
    const { NonZeroUsize::new(32).expect("positive") }
}

#[typetag::serde(name = "ark-vale")]
impl SelectorConfig for ArkVale {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.build_selector(site.shape.head_dim)))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl ArkVale {
    fn build_selector(&self, dim: usize) -> ArkValeSelector {
        let boxes = [(); 2].map(|()| Labels::new(dim, LabelBits::default()));
        ArkValeSelector { config: self.clone(), boxes, open: Vec::new() }
    }
}

#[derive(Clone)]
struct ArkValeSelector {
    config: ArkVale,
    /// Lower ends of the boxes of the complete pages, and negated upper ends.
    boxes: [Labels; 2],
    /// Keys after the last complete page, `[tokens · head_dim]`.
    open: Vec<f32>,
}

impl ArkValeSelector {
    fn append_key(&mut self, key: &[f32]) {
        self.open.extend(key);
        let page = self.config.page.get();
        if self.open.len() / key.len() == page {
            let mean_box = mean_box(&Tokens::new(&self.open, page, key.len()));
            for (labels, ends) in self.boxes.iter_mut().zip(&mean_box.least) {
                labels.push(ends, Rounding::Down);
            }
            self.open.clear();
        }
    }

    /// Computes the scores of the pages, `[⌈visible / page⌉]`.
    fn page_scores(&self, row: &Row<'_>) -> Vec<f32> {
        let (visible, rest) = (row.visible(), row.visible() % self.config.page);
        let cut = (rest > 0).then(|| mean_box(&row.keys().range(visible - rest..visible)));
        let full = visible / self.config.page;
        page::scores(row, self.config.score, full, &self.boxes, cut.as_ref())
    }
}

/// Returns the mean box of some keys: its lower ends, and its negated upper ends.
fn mean_box(keys: &Tokens<'_>) -> Page {
    let Page { tokens, least: [smallest, largest_negated] } =
        Page::from_tokens(*keys, 0..keys.len());
    let middle: Vec<f32> =
        smallest.iter().zip(&largest_negated).map(|(least, most)| (least - most) / 2.0).collect();
    let mut distances = vec![0.0_f64; keys.dim()];
    let mut key = vec![0.0; keys.dim()];
    for token in 0..tokens {
        keys.copy_row(token, &mut key);
        for (channel, sum) in distances.iter_mut().enumerate() {
            *sum += f64::from((key[channel] - middle[channel]).abs());
        }
    }
    let end = |sign: f32| -> Vec<f32> {
        let radius = |sum: f64| (sum / tokens as f64) as f32;
        middle.iter().zip(&distances).map(|(m, &sum)| sign * m - radius(sum)).collect()
    };
    Page { tokens, least: [end(1.0), end(-1.0)] }
}

impl Selector for ArkValeSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        let mut key = vec![0.0; new.keys.dim()];
        for token in 0..new.keys.len() {
            new.keys.copy_row(token, &mut key);
            self.append_key(&key);
        }
    }

    fn can_truncate(&self) -> bool {
        true
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        let (tokens, page) = (keys.len(), self.config.page.get());
        let complete = tokens / page;
        self.boxes.iter_mut().for_each(|labels| labels.truncate(complete));
        self.open = keys.to_array(complete * page..tokens).into_iter().collect();
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn share(&mut self) {
        self.boxes.iter_mut().for_each(Labels::share);
    }

    fn group_wide(&self) -> bool {
        self.config.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.boxes.iter().map(Labels::bytes).sum()
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        self.config.tunable()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let (visible, score) = (row.visible(), self.config.score);
        let scores = expand_to_tokens(self.page_scores(row), self.config.page.get(), visible);
        take_top_predicted(row, picks, self.config.size.to_tokens(visible), score, &scores);
    }
}

register!(
    Selector,
    "ark-vale",
    ArkVale,
    "the tokens of the pages whose mean boxes reach the largest scores"
);

#[cfg(test)]
mod tests;
