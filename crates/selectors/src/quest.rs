//! `quest`: the tokens of the pages whose keys can reach the largest scores.
//!
//! Tokens form pages of `page` tokens. The index stores the smallest and the largest number of each
//! channel over the keys of a page. A token's score is the largest product with the query that any
//! key between these numbers can reach:
//!
//! ```text
//! bound(page) = Σ_c max(q_c · min_c, q_c · max_c)  ≥  q·k  for every key k of the page
//! ```
//!
//! The selector picks the `size` best tokens not yet picked, that is, whole pages and the first
//! tokens of the last one; ties go to the lower index. With `bits` the two vectors of a
//! page are quantised, each on its own grid, the smallest numbers rounded down and the largest up,
//! so that the bound still holds. With `score = "group"` the bounds of the group's query heads are
//! added.
//!
//! A row depends only on the tokens that it sees: a page of which only a part is visible is bounded
//! by its visible keys, unquantised.
//!
//! Cost: O(visible · head_dim / page) per row, each number read in 4 bytes, or in the bits of a
//! code. The index takes 8 bytes per channel and page. Appending a token is O(head_dim).
//!
//! # Guarantee
//! With `score = "head"` no token left over has a logit above the largest bound of a page with
//! tokens left over. The selector reports this bound, rounding errors included, to the estimators
//! that need one. The bound is sound but loose: where the keys of a page differ, it exceeds the
//! largest logit by many units. An estimator that bounds weights by the exponential of the bound
//! reads nearly everything.
//!
//! Tang, Zhao, Zhu, Xiao, Kasikci, Han (2024), "Quest: Query-Aware Sparsity for Efficient
//! Long-Context LLM Inference", <https://arxiv.org/abs/2406.10774>. The authors take whole pages,
//! at least three, chosen from all pages, not only from the tokens left over; here a size is a
//! number of new tokens, as for every selector.

pub(crate) mod page;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens,
    plugin::Tunable,
    register,
    step::{PrefixMax, Score},
    typetag,
};

use crate::block_scores::expand_to_tokens;
use crate::predicted_logits::take_top_predicted;
use page::Page;
use vattention_index::{LabelBits, Labels, Rounding};

/// Tokens of the pages whose keys can reach the largest scores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quest {
    /// Number of tokens to pick, in addition to those already picked.
    pub size: Size,
    /// Number of tokens in a page.
    #[serde(default = "default_page")]
    pub page: NonZeroUsize,
    /// Bits per number of a page's bounds, 1 to 8, or 0 for exact numbers.
    #[serde(default)]
    pub bits: LabelBits,
    /// Scores to rank by: each query head's own, or the sum over its group.
    #[serde(default)]
    pub score: Score,
}

fn default_page() -> NonZeroUsize {
    const { NonZeroUsize::new(16).expect("positive") }
}

#[typetag::serde(name = "quest")]
impl SelectorConfig for Quest {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.build_selector(site.shape.head_dim)))
    }

    fn bounds_residual(&self) -> bool {
        self.score == Score::Head
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl Quest {
    fn build_selector(&self, dim: usize) -> QuestSelector {
        QuestSelector {
            config: self.clone(),
            full: [(); 2].map(|()| Labels::new(dim, self.bits)),
            last: Page::new(dim),
            magnitudes: vec![PrefixMax::default(); dim],
        }
    }
}

#[derive(Clone)]
struct QuestSelector {
    config: Quest,
    /// Smallest numbers of the keys, and of the negated keys, of the full pages.
    full: [Labels; 2],
    /// Page that is not full yet.
    last: Page,
    /// Magnitudes of the stored bounds, per channel, as prefix maxima over the full pages,
    /// `[head_dim]`.
    magnitudes: Vec<PrefixMax>,
}

impl QuestSelector {
    fn append_key(&mut self, key: &[f32]) {
        self.last.add(key);
        if self.last.tokens == self.config.page.get() {
            let page = std::mem::replace(&mut self.last, Page::new(key.len()));
            let item = self.full[0].len();
            for (labels, least) in self.full.iter_mut().zip(&page.least) {
                labels.push(least, Rounding::Down);
            }
            for (channel, magnitude) in self.magnitudes.iter_mut().enumerate() {
                let stored = self.full.each_ref().map(|labels| labels.get(item, channel).abs());
                magnitude.push(stored[0].max(stored[1]).into());
            }
        }
    }

    /// Returns the page in which the visible tokens end, if they do not fill it.
    fn cut_page(&self, row: &Row<'_>) -> Option<Page> {
        let tokens = row.visible() % self.config.page;
        (tokens > 0).then(|| Page::from_tokens(row.keys(), row.visible() - tokens..row.visible()))
    }

    /// Computes the bounds of the pages, `[⌈visible / page⌉]`, with `cut` as the last page if there
    /// is one.
    fn bounds(&self, row: &Row<'_>, cut: Option<&Page>) -> Vec<f32> {
        let full = row.visible() / self.config.page;
        page::scores(row, self.config.score, full, &self.full, cut)
    }

    /// Upper bound on the amount by which a computed bound may fall below a computed logit that it
    /// bounds, since both are sums of rounded products in some order: `2 γ Σ_c |q_c| max |k_c|`,
    /// plus the loss to underflow. `γ` bounds the relative rounding error of such a sum.
    fn slack(&self, row: &Row<'_>, cut: Option<&Page>) -> f64 {
        let full = row.visible() / self.config.page;
        let unit = (self.magnitudes.len() + 2) as f64 * f64::from(f32::EPSILON) / 2.0;
        let sum: f64 = (row.query().iter().zip(&self.magnitudes).enumerate())
            .map(|(channel, (q, magnitude))| {
                let cut = cut.map_or(0.0, |page| page.magnitude(channel));
                f64::from(q.abs()) * magnitude.max_of_first(full).max(cut.into())
            })
            .sum();
        2.0 * unit / (1.0 - unit) * sum * (1.0 + unit) + f64::from(f32::MIN_POSITIVE)
    }
}

impl Selector for QuestSelector {
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
        let full = tokens / page;
        self.full.iter_mut().for_each(|labels| labels.truncate(full));
        self.magnitudes.iter_mut().for_each(|magnitude| magnitude.truncate(full));
        self.last = Page::from_tokens(*keys, full * page..tokens);
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn share(&mut self) {
        self.full.iter_mut().for_each(Labels::share);
    }

    fn group_wide(&self) -> bool {
        self.config.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.full.iter().map(Labels::bytes).sum()
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        self.config.tunable()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let (visible, page) = (row.visible(), self.config.page.get());
        let cut = self.cut_page(row);
        let scores = expand_to_tokens(self.bounds(row, cut.as_ref()), page, visible);
        let (size, score) = (self.config.size.to_tokens(visible), self.config.score);
        let left = take_top_predicted(row, picks, size, score, &scores);
        if let (Score::Head, Some(bound)) = (score, left) {
            let bound = f64::from(bound) + self.slack(row, cut.as_ref());
            picks.bound_residual((row.form().cap_bound(bound) as f32).next_up());
        }
    }
}

register!(
    Selector,
    "quest",
    Quest,
    "the tokens of the pages whose keys can reach the largest scores"
);

#[cfg(test)]
mod tests;
