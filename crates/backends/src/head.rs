//! One KV head of a sequence: its KV cache, and the pipeline that chooses tokens from it.

use ndarray::{ArcArray, ArrayView3, Ix2, Ix3, s};
use vattention_core::{
    NewTokens, Pipeline, Result, RowsView, Site, SoftmaxForm, Step, TokenClass,
    plugin::PromptQueries,
};

use crate::cache::{Cache, CacheView, Room};
use crate::executor::{HeadInput, HeadOutput};
use crate::pipelines::GroupSoftmax;

/// One KV head of a layer. Its selectors may not have indexed all tokens yet.
#[derive(Debug)]
pub(crate) struct LayerHead {
    pub(crate) cache: Cache,
    pub(crate) pipeline: Pipeline,
    softmax: GroupSoftmax,
    /// Number of tokens that the selectors have indexed, from the first on.
    indexed: usize,
    /// Last queries of each prompt of the sequence, in order.
    prompts: Vec<LastQueries>,
    /// Number of prompts that the selectors have observed, from the first on.
    prompts_indexed: usize,
}

/// The last queries of a prompt. Forks share them.
#[derive(Clone, Debug)]
pub(crate) struct LastQueries {
    /// `[group, prompt, head_dim]`, not scaled.
    pub(crate) queries: ArcArray<f32, Ix3>,
    /// Number of tokens of the sequence at the end of the prompt.
    pub(crate) tokens: usize,
}

impl LastQueries {
    /// Returns the queries that remain if the sequence is cut to its first `tokens` tokens.
    fn cut(&self, tokens: usize) -> Option<Self> {
        let removed = self.tokens.saturating_sub(tokens);
        let remaining = self.queries.dim().1.checked_sub(removed).filter(|&count| count > 0)?;
        let queries = self.queries.slice(s![.., ..remaining, ..]).to_shared();
        Some(Self { queries, tokens: self.tokens - removed })
    }
}

/// Queries of a KV head's group at one step.
#[derive(Debug)]
pub(crate) struct GroupQuery {
    /// `[group · head_dim]`
    pub(crate) group: Vec<f32>,
    pub(crate) visible: usize,
    pub(crate) step: u32,
}

impl GroupQuery {
    fn step<'a>(
        &'a self,
        site: &'a Site,
        cache: &'a CacheView<'_>,
        form: SoftmaxForm<'a>,
    ) -> Step<'a> {
        let Self { group: queries, visible, step } = self;
        let (keys, values) = (cache.keys(), cache.values());
        Step { visible: *visible, step: *step, form, ..Step::new(site, queries, keys, values) }
    }
}

impl LayerHead {
    pub(crate) fn new(cache: Cache, pipeline: Pipeline, softmax: GroupSoftmax) -> Self {
        Self { cache, pipeline, softmax, indexed: 0, prompts: Vec::new(), prompts_indexed: 0 }
    }

    pub(crate) fn fork(&self) -> Result<Self> {
        Ok(Self {
            cache: self.cache.fork()?,
            pipeline: self.pipeline.clone(),
            softmax: self.softmax.clone(),
            prompts: self.prompts.clone(),
            ..*self
        })
    }

    /// Returns a head with the first `tokens` tokens, none of which the selectors have indexed.
    /// A prompt that is cut keeps the queries of its remaining tokens.
    pub(crate) fn truncated(&self, tokens: usize) -> Result<Self> {
        let whole = self.prompts.partition_point(|prompt| prompt.tokens <= tokens);
        let (whole, others) = self.prompts.split_at(whole);
        let cut = others.first().and_then(|prompt| prompt.cut(tokens));
        let prompts = whole.iter().cloned().chain(cut).collect();
        let (cache, pipeline) = (self.cache.truncated(tokens)?, self.pipeline.truncated(tokens)?);
        Ok(Self { prompts, ..Self::new(cache, pipeline, self.softmax.clone()) })
    }

    /// Removes all but the first `tokens` tokens in place, and restores the first sample sizes. No
    /// prompt may end later.
    pub(crate) fn rewind(&mut self, tokens: usize, first_sizes: &[u64]) -> Result<()> {
        self.cache.truncate(tokens)?;
        self.pipeline.rewind(tokens, first_sizes)?;
        if tokens < self.indexed {
            self.pipeline.hide(&self.cache.view().keys());
            self.indexed = tokens;
        }
        Ok(())
    }

    /// Last queries of each prompt of the sequence, in order.
    pub(crate) fn prompts(&self) -> &[LastQueries] {
        &self.prompts
    }

    /// Returns true if the sequence has a prompt, even if the selectors have not observed it yet.
    pub(crate) fn has_prompt(&self) -> bool {
        !self.prompts.is_empty()
    }

    /// Name of the first selector that learns from prompts, if the sequence has no prompt.
    pub(crate) fn awaits_prompt(&self) -> Option<&str> {
        if self.has_prompt() { None } else { self.pipeline.awaits_prompt() }
    }

    /// Appends keys `[new, head_dim]` and values `[new, value_dim]`, in `room` allocated for `new`
    /// tokens. The selectors do not index them.
    pub(crate) fn append(
        &mut self,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
        room: Room,
    ) {
        let first = self.cache.len();
        self.cache.append(keys, values, room);
        let view = self.cache.view();
        let stored = view.range(first..self.cache.len());
        self.pipeline.measure(stored.values);
        self.pipeline
            .measure_rounding(keys, values, &stored)
            .expect("the shapes of new rows are checked before");
    }

    /// Input of an executor for one query. With `listed`, the output lists the tokens read.
    pub(crate) fn input<'a>(
        &'a self,
        view: &'a CacheView<'a>,
        query: &'a GroupQuery,
        listed: bool,
    ) -> HeadInput<'a> {
        let step = query.step(self.pipeline.site(), view, self.softmax.form());
        HeadInput { pipeline: &self.pipeline, step, listed }
    }

    /// Completes the reports of rows whose promise counts the rounding of keys and values.
    pub(crate) fn count_rounding(&self, query: &GroupQuery, output: &mut HeadOutput) {
        if !self.pipeline.counts_rounding() {
            return;
        }
        let view = self.cache.view();
        let step = query.step(self.pipeline.site(), &view, self.softmax.form());
        for (member, row) in output.rows.iter_mut().enumerate() {
            let sums = &row.sums.sums;
            row.report = self.pipeline.count_rounding(&step.row(member), sums, row.report);
        }
    }

    /// Stores the last queries of a prompt, `[group, prompt, head_dim]`, not scaled.
    pub(crate) fn observe(&mut self, queries: ArrayView3<'_, f32>) {
        let queries = queries.to_shared();
        self.prompts.push(LastQueries { queries, tokens: self.cache.len() });
    }

    /// Returns true if at most one of the first `limit` tokens, and no prompt, is left to index.
    pub(crate) fn is_nearly_indexed(&self, limit: usize) -> bool {
        limit <= self.indexed + 1 && self.next_prompt(limit).is_none()
    }

    /// Next prompt for the selectors to observe, if it ends within the first `limit` tokens.
    fn next_prompt(&self, limit: usize) -> Option<LastQueries> {
        self.prompts.get(self.prompts_indexed).filter(|prompt| prompt.tokens <= limit).cloned()
    }

    /// Makes the selectors index the first `limit` tokens and observe the prompts that end within
    /// them, in order of arrival. `classes` contains the class of every token of the sequence, if
    /// the selectors need classes. Selectors observe queries multiplied by `scale`.
    pub(crate) fn index(&mut self, limit: usize, classes: Option<&[TokenClass]>, scale: f32) {
        let site = *self.pipeline.site();
        while let Some(LastQueries { queries, tokens }) = self.next_prompt(limit) {
            self.index_tokens(tokens, classes);
            let view = self.cache.view();
            let NewTokens { keys, values, .. } = view.range(0..tokens);
            let scaled = queries.mapv(|q| q * scale);
            let (queries, form) = (scaled.view(), self.softmax.form());
            self.pipeline.observe(&PromptQueries { site: &site, queries, keys, values, form });
            self.prompts_indexed += 1;
        }
        self.index_tokens(limit, classes);
    }

    fn index_tokens(&mut self, limit: usize, classes: Option<&[TokenClass]>) {
        let new = self.indexed..limit;
        if !new.is_empty() {
            let classes = classes.map(|all| &all[new.clone()]);
            let view = self.cache.view();
            let new = NewTokens { classes, ..view.range(new) };
            self.pipeline.show(&new).expect("new tokens are checked when they are appended");
            self.indexed = limit;
        }
    }

    /// Frees the rows of evicted tokens among the first `visible` ones.
    pub(crate) fn free(&mut self, visible: usize) {
        if visible > 0
            && let Some(live) = self.pipeline.live(visible)
        {
            // If the remaining rows cannot be allocated, the next step tries again.
            let _ = self.cache.free(&live);
        }
    }

    /// Reports the attention weights of each query head to the selectors.
    pub(crate) fn learn(&mut self, query: &GroupQuery, output: &HeadOutput) {
        let site = *self.pipeline.site();
        let cache = self.cache.view();
        let step = query.step(&site, &cache, self.softmax.form());
        output.feed_back(&step, &mut self.pipeline);
    }
}
