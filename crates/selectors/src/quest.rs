//! `quest`: the tokens of the pages whose keys can reach the largest scores.
//!
//! Tokens are in pages of `page`, of which the channel-wise least and largest keys are kept. A
//! token scores what no key between them exceeds:
//!
//! ```text
//! bound(page) = Σ_c max(q_c · min_c, q_c · max_c)  ≥  q·k  for every key k of the page
//! ```
//!
//! Takes the `size` best tokens among those not yet taken, lower index first among equals: whole
//! pages, and the first tokens of the last. With `bits` the two vectors of a page are quantised,
//! each on its own grid, the least down and the largest up, so that the bound remains one. With
//! `score = "group"` the bounds of the group's query heads are added up.
//!
//! A row depends on the tokens that it sees only: the page in which they end, if they do not fill
//! it, is bounded by those of its keys that are visible, unquantised.
//!
//! Cost: O(visible · head_dim / page) per row, of which it reads 4 bytes each, or as many bits as a
//! code has; 8 bytes of index per channel and page. Appending a token is O(head_dim).
//!
//! # Guarantee
//! With `score = "head"` no untaken token's logit exceeds the largest bound of a page with tokens
//! left over, which it tells the estimators that need such a bound, rounding errors included. That
//! is sound but loose: many units above the largest logit where keys of a page differ, and its
//! exponential is what an estimator has to live with, so that it reads nearly everything.
//!
//! Tang, Zhao, Zhu, Xiao, Kasikci, Han (2024), "Quest: Query-Aware Sparsity for Efficient
//! Long-Context LLM Inference", <https://arxiv.org/abs/2406.10774>. The authors take whole pages, at
//! least three, chosen from all pages and not from what is left; here a size is that many new
//! tokens, as for every selector.

mod page;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::Tunable,
    register,
    step::{PrefixMax, Score},
    typetag,
};

use crate::per_token::per_token;
use page::Page;
use vattention_index::{LabelBits, Labels, Rounding};

/// The tokens of the pages whose keys can reach the largest scores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quest {
    /// How many tokens, beside those already taken.
    pub size: Size,
    /// Tokens in a page.
    #[serde(default = "authors_page")]
    pub page: NonZeroUsize,
    /// Bits of each number of a page's bounds, 1 to 8, or 0 for exact ones.
    #[serde(default)]
    pub bits: LabelBits,
    /// Whose scores count.
    #[serde(default)]
    pub score: Score,
}

fn authors_page() -> NonZeroUsize {
    const { NonZeroUsize::new(16).expect("positive") }
}

#[typetag::serde(name = "quest")]
impl SelectorConfig for Quest {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.worker(site.shape.head_dim)))
    }

    fn bounds_residual(&self) -> bool {
        self.score == Score::Head
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl Quest {
    fn worker(&self, dim: usize) -> QuestSelector {
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
    /// The least keys of the full pages, and the least negated keys.
    full: [Labels; 2],
    /// The page that is not full yet.
    last: Page,
    /// The magnitude of the keys of each full page, as they are kept, `[head_dim]`.
    magnitudes: Vec<PrefixMax>,
}

impl QuestSelector {
    fn add(&mut self, key: &[f32]) {
        self.last.add(key);
        if self.last.tokens == self.config.page.get() {
            let page = std::mem::replace(&mut self.last, Page::new(key.len()));
            let item = self.full[0].len();
            for (labels, least) in self.full.iter_mut().zip(&page.least) {
                labels.push(least, Rounding::Down);
            }
            for (channel, magnitude) in self.magnitudes.iter_mut().enumerate() {
                let kept = self.full.each_ref().map(|labels| labels.get(item, channel).abs());
                magnitude.push(kept[0].max(kept[1]).into());
            }
        }
    }

    /// The page in which the visible tokens end, if they do not fill it.
    fn cut_page(&self, row: &Row<'_>) -> Option<Page> {
        let tokens = row.visible() % self.config.page;
        (tokens > 0).then(|| Page::of(row.keys(), row.visible() - tokens..row.visible()))
    }

    /// The bounds of the pages, `[⌈visible / page⌉]`, with `cut` as the last if there is one.
    fn bounds(&self, row: &Row<'_>, cut: Option<&Page>) -> Vec<f32> {
        let terms = match self.config.score {
            Score::Head => page::terms(std::iter::once(row.query())),
            Score::Group => page::terms(row.members().map(|member| member.query())),
        };
        let mut bounds = vec![0.0; row.visible() / self.config.page];
        for (labels, terms) in self.full.iter().zip(&terms) {
            labels.add_products(terms, &mut bounds);
        }
        bounds.extend(cut.map(|page| page.bound(&terms)));
        bounds
    }

    /// How much less a bound may have come out than a logit that it bounds, both being sums of
    /// rounded products in some order: `2 γ Σ_c |q_c| max |k_c|`, and what is lost to underflow.
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
            self.add(&key);
        }
    }

    fn group_wide(&self) -> bool {
        self.config.score == Score::Group
    }

    fn index_bytes(&self) -> usize {
        self.full.iter().map(Labels::bytes).sum()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let (visible, page) = (row.visible(), self.config.page.get());
        let cut = self.cut_page(row);
        let scores = per_token(self.bounds(row, cut.as_ref()), page, visible);
        let left = picks.take_top(self.config.size.to_tokens(visible), &scores);
        if let (Score::Head, Some(bound)) = (self.config.score, left) {
            let bound = f64::from(bound) + self.slack(row, cut.as_ref());
            picks.bound_residual((bound as f32).next_up());
        }
    }
}

register!(Selector, "quest", Quest, "the pages whose keys can reach the largest scores");

#[cfg(test)]
mod tests;
