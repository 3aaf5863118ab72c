//! `reuse`: the picks of another selector, which selects only at some of the steps.
//!
//! The other selector, `of`, selects at the first step. At the next `every − 1` steps, its picks
//! are read again, together with all tokens that have been appended since; then it selects again.
//! With `similarity`, it also selects again at a step whose queries differ from those of the last
//! selection: if the cosine between the two, averaged over the query heads of the KV head, is
//! below `similarity`.
//!
//! ```text
//! picks(t) = picks of `of` at step s ∪ {tokens after those visible at step s}    t − every < s ≤ t
//! ```
//!
//! Queries of successive tokens are similar, and so are the tokens that they attend to. TidalDecode
//! and FreeKV use this; `similarity` is FreeKV's correction.
//!
//! If `of` evicts tokens, its stored picks and later tokens are evicted only after the next
//! selection.
//!
//! Cost: that of `of` at every `every`-th step, and O(picks) at the others. Each query head stores
//! its picks, 4 bytes each, and a query; if `of` picks the same tokens for the whole group, they
//! are stored once.
//!
//! # Guarantee
//! A promise of an estimator after the selector stays what it is. The picks depend on the queries
//! of the current and of earlier steps, but not on the sample of the current step, whose random
//! numbers belong to this step only. Given everything before the sample is drawn, the picks are a
//! fixed set and the sample is drawn from the other tokens, as after any selector; so the
//! probability of a violation is at most delta in each step. What changes is the set: old picks
//! miss tokens that have become heavy, so that the sample must be larger, and the assumption that
//! it reveals the tail of the remaining weights fails more often. No bound on the tokens left over
//! is known at steps without a selection, and samplers receive no scores there; with
//! `index = "selectors"`, `priority` then draws by the values alone.
//!
//! Departures from the papers: FreeKV selects at every step, for the next one, to hide the time of
//! the selection; here the step that selects reads its own picks, and the next steps read them
//! again. TidalDecode reuses the picks of a layer at the layers above it, which a selector cannot
//! do, because it belongs to one layer.
//!
//! Yang, Zhang, Chen, Li, Jia (2024), "TidalDecode: Fast and Accurate LLM Decoding with Position
//! Persistent Sparse Attention", <https://arxiv.org/abs/2410.05076>; Liu et al. (2025), "FreeKV:
//! Boosting KV Cache Retrieval for Efficient LLM Inference", <https://arxiv.org/abs/2505.13109>.

use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site,
    plugin::{AttentionWeights, PromptQueries, Tunable},
    register, typetag,
};

/// Picks of another selector, which selects only at some of the steps.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reuse {
    /// Number of steps that read the picks of one selection.
    pub every: NonZeroU32,
    /// Cosine between the queries of a step and those of the last selection, averaged over the
    /// query heads of a KV head, below which the other selector selects again; absent: queries are
    /// not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub similarity: Option<Fraction>,
    /// Selector whose picks are read.
    pub of: Box<dyn SelectorConfig>,
}

#[typetag::serde(name = "reuse")]
impl SelectorConfig for Reuse {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let inner = self.of.build(site)?;
        let lists = if inner.group_wide() { 1 } else { site.shape.group() };
        Ok(Box::new(ReuseSelector {
            every: self.every.get(),
            similarity: self.similarity,
            inner,
            stored: vec![None; lists],
            pending: PendingSelections(Mutex::new(vec![None; lists])),
        }))
    }

    fn check(&self) -> Result<()> {
        self.of.check()
    }

    fn needs_classes(&self) -> bool {
        self.of.needs_classes()
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        self.of.tunable()
    }

    fn is_rotation_invariant(&self) -> bool {
        self.of.is_rotation_invariant()
    }
}

#[derive(Clone)]
struct ReuseSelector {
    every: u32,
    similarity: Option<Fraction>,
    inner: Box<dyn Selector>,
    /// Last selection of each query head, or of the whole group, `[lists]`.
    stored: Vec<Option<StoredSelection>>,
    /// Selections of the current step. They replace the stored ones after the step.
    pending: PendingSelections,
}

/// Picks of one selection.
#[derive(Clone)]
struct StoredSelection {
    /// Number of the step.
    step: u32,
    /// Number of tokens that were visible.
    visible: usize,
    /// Queries of the group, `[group · head_dim]`.
    queries: Vec<f32>,
    tokens: Vec<u32>,
}

/// Selections of the current step, `[lists]`. A mutex, because steps have only a shared reference
/// to a selector.
struct PendingSelections(Mutex<Vec<Option<StoredSelection>>>);

impl PendingSelections {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<StoredSelection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for PendingSelections {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.lock().clone()))
    }
}

impl ReuseSelector {
    /// Index of the list of picks of a row.
    fn list(&self, row: &Row<'_>) -> usize {
        if self.inner.group_wide() { 0 } else { row.member() }
    }

    /// Returns the stored selection that a row reads again, unless the row needs a new one.
    fn find_reusable(&self, row: &Row<'_>) -> Option<&StoredSelection> {
        let stored = self.stored[self.list(row)].as_ref()?;
        let age = row.step().checked_sub(stored.step)?;
        let is_similar = self.similarity.is_none_or(|least| {
            mean_cosine(&flatten_group(row), &stored.queries, row.query().len()) >= least.get()
        });
        (age < self.every && is_similar).then_some(stored)
    }

    /// Lets the other selector pick, and records its picks.
    fn select_again(&self, row: &Row<'_>, picks: &mut Picks) {
        let before = picks.clone();
        self.inner.select(row, picks);
        let mut tokens = picks.indices();
        tokens.retain(|&token| !before.contains(token as usize));
        let (step, visible, queries) = (row.step(), row.visible(), flatten_group(row));
        let selected = StoredSelection { step, visible, queries, tokens };
        self.pending.lock()[self.list(row)] = Some(selected);
    }
}

/// Queries of a row's group, `[group · head_dim]`.
fn flatten_group(row: &Row<'_>) -> Vec<f32> {
    row.group().iter().copied().collect()
}

/// Cosine between two queries of `dim` elements, averaged over the query heads of a group. The
/// cosine with a query of 0 is 0.
fn mean_cosine(a: &[f32], b: &[f32], dim: usize) -> f64 {
    let product = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
    };
    let (mut sum, mut count) = (0.0, 0);
    for (a, b) in a.chunks_exact(dim).zip(b.chunks_exact(dim)) {
        let lengths = (product(a, a) * product(b, b)).sqrt();
        sum += if lengths > 0.0 { product(a, b) / lengths } else { 0.0 };
        count += 1;
    }
    sum / f64::from(count.max(1))
}

impl Selector for ReuseSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.inner.append(new);
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        self.stored.fill(None);
        self.inner.observe(prompt);
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        let list = self.list(row);
        let pending = self.pending.lock()[list].take_if(|selected| selected.step == row.step());
        if pending.is_some() {
            self.stored[list] = pending;
        }
        if self.inner.needs_feedback() {
            self.inner.feedback(row, attended);
        }
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn needs_prompt(&self) -> bool {
        self.inner.needs_prompt()
    }

    fn group_wide(&self) -> bool {
        self.inner.group_wide()
    }

    fn index_bytes(&self) -> usize {
        let bytes = |selected: &StoredSelection| {
            size_of_val(&selected.tokens[..]) + size_of_val(&selected.queries[..])
        };
        self.inner.index_bytes() + self.stored.iter().flatten().map(bytes).sum::<usize>()
    }

    fn live(&self, live: &mut Picks) {
        self.inner.live(live);
        for selected in self.stored.iter().flatten() {
            live.take_all(selected.tokens.iter().map(|&token| token as usize));
            live.take_range(selected.visible..live.visible());
        }
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("learns from the steps of its own sequence")
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        if self.stored.iter().all(Option::is_none) { self.inner.adjustable() } else { None }
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        match self.find_reusable(row) {
            Some(selected) => {
                picks.take_all(selected.tokens.iter().map(|&token| token as usize));
                picks.take_range(selected.visible..row.visible());
            }
            None => self.select_again(row, picks),
        }
    }
}

register!(
    Selector,
    "reuse",
    Reuse,
    "the picks of another selector, which selects again only after some steps"
);

#[cfg(test)]
mod tests;
