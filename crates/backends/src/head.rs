//! One KV head of a sequence: its rows, and the pipeline that chooses among them.

use ndarray::{ArcArray, ArrayView3, Ix2, Ix3, s};
use vattention_core::{
    NewTokens, Pipeline, Result, RowsView, Site, Step, TokenClass,
    plugin::{Attended, PromptQueries},
};

use crate::cache::{Cache, Room, View};
use crate::executor::{HeadInput, HeadOutput};

/// One KV head. Its selectors may not have been shown everything yet.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) cache: Cache,
    pub(crate) pipeline: Pipeline,
    /// Tokens that the selectors have been shown, the first ones.
    shown: usize,
    /// What else there is to show, in order, and how much of it they have been shown.
    prompts: Vec<LastQueries>,
    prompts_shown: usize,
}

/// The last queries of a prompt, `[group, prompt, head_dim]`, scaled, and how many tokens there were.
/// Forks share them.
#[derive(Clone, Debug)]
struct LastQueries {
    queries: ArcArray<f32, Ix3>,
    tokens: usize,
}

impl LastQueries {
    /// Returns the queries that remain if the sequence is cut to its first `tokens` tokens.
    fn cut(&self, tokens: usize) -> Option<Self> {
        let taken_back = self.tokens.saturating_sub(tokens);
        let left = self.queries.dim().1.checked_sub(taken_back).filter(|&left| left > 0)?;
        let queries = self.queries.slice(s![.., ..left, ..]).to_shared();
        Some(Self { queries, tokens: self.tokens - taken_back })
    }
}

/// One query of a KV head's group.
#[derive(Debug)]
pub(crate) struct Query {
    /// `[group · head_dim]`
    pub(crate) group: Vec<f32>,
    pub(crate) visible: usize,
    pub(crate) step: u32,
}

impl Query {
    fn step<'a>(&'a self, site: &'a Site, cache: &'a View<'_>) -> Step<'a> {
        let (keys, values) = (cache.keys(), cache.values());
        Step { site, queries: &self.group, keys, values, visible: self.visible, step: self.step }
    }
}

impl Head {
    pub(crate) fn new(cache: Cache, pipeline: Pipeline) -> Self {
        Self { cache, pipeline, shown: 0, prompts: Vec::new(), prompts_shown: 0 }
    }

    pub(crate) fn fork(&self) -> Result<Self> {
        Ok(Self {
            cache: self.cache.fork()?,
            pipeline: self.pipeline.clone(),
            prompts: self.prompts.clone(),
            ..*self
        })
    }

    /// The same head over the first `tokens` tokens, of which the selectors have been shown nothing.
    /// If the end falls into a prompt, the queries of its remaining tokens are kept.
    pub(crate) fn truncated(&self, tokens: usize) -> Result<Self> {
        let (whole, others) = self.prompts.split_at(self.prompts_within(tokens));
        let cut = others.first().and_then(|prompt| prompt.cut(tokens));
        Ok(Self {
            cache: self.cache.truncated(tokens)?,
            pipeline: self.pipeline.truncated(tokens)?,
            shown: 0,
            prompts: whole.iter().cloned().chain(cut).collect(),
            prompts_shown: 0,
        })
    }

    /// Returns whether a prompt was observed; the selectors may not have been shown it yet.
    pub(crate) fn has_prompt(&self) -> bool {
        !self.prompts.is_empty()
    }

    /// Name of the first selector that learns from a prompt, if none was observed.
    pub(crate) fn awaits_prompt(&self) -> Option<&str> {
        if self.has_prompt() { None } else { self.pipeline.awaits_prompt() }
    }

    /// Appends keys `[new, head_dim]` and values `[new, value_dim]`, in room that was made for so
    /// many. The selectors are not shown them.
    pub(crate) fn append(
        &mut self,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
        room: Room,
    ) {
        let first = self.cache.len();
        self.cache.append(keys, values, room);
        self.pipeline.measure(self.cache.view().range(first..self.cache.len()).values);
    }

    /// A query, and all that there is to answer it with.
    pub(crate) fn input<'a>(
        &'a self,
        view: &'a View<'a>,
        query: &'a Query,
        listed: bool,
    ) -> HeadInput<'a> {
        let step = query.step(self.pipeline.site(), view);
        HeadInput { pipeline: &self.pipeline, step, listed }
    }

    /// Takes note of the last queries of a prompt, `[group, prompt, head_dim]`, scaled.
    pub(crate) fn observe(&mut self, queries: ArrayView3<'_, f32>) {
        let queries = queries.to_shared();
        self.prompts.push(LastQueries { queries, tokens: self.cache.len() });
    }

    /// Tokens and prompts of the first `limit` tokens that the selectors have not been shown.
    pub(crate) fn unshown(&self, limit: usize) -> (usize, usize) {
        let prompts = self.prompts_within(limit).saturating_sub(self.prompts_shown);
        (limit.saturating_sub(self.shown), prompts)
    }

    fn prompts_within(&self, limit: usize) -> usize {
        self.prompts.partition_point(|prompt| prompt.tokens <= limit)
    }

    /// Shows the selectors what they have not been shown of the first `limit` tokens, in the order in
    /// which it came. `classes` are of all tokens, if the selectors need them.
    pub(crate) fn catch_up(&mut self, limit: usize, classes: Option<&[TokenClass]>) {
        let due = self.prompts_within(limit);
        let Self { cache, pipeline, shown, prompts, prompts_shown } = self;
        let (site, view) = (*pipeline.site(), cache.view());
        let mut show = |pipeline: &mut Pipeline, tokens| {
            if *shown < tokens {
                let classes = classes.map(|all| &all[*shown..tokens]);
                let new = NewTokens { classes, ..view.range(*shown..tokens) };
                pipeline.show(&new).expect("new tokens are checked when they are appended");
                *shown = tokens;
            }
        };
        let known = (*prompts_shown).min(due);
        for LastQueries { queries, tokens } in &prompts[known..due] {
            let tokens = *tokens;
            show(pipeline, tokens);
            let (keys, values) = (view.keys().range(0..tokens), view.values().range(0..tokens));
            pipeline.observe(&PromptQueries { site: &site, queries: queries.view(), keys, values });
        }
        *prompts_shown = due.max(known);
        show(pipeline, limit);
    }

    /// Frees the rows of the first `visible` tokens that are evicted.
    pub(crate) fn free(&mut self, visible: usize) {
        if visible > 0
            && let Some(live) = self.pipeline.live(visible)
        {
            // Without memory for what stays nothing is freed, and the next step tries again.
            let _ = self.cache.free(&live);
        }
    }

    /// Tells the selectors how the attention of each member was spread.
    pub(crate) fn learn(&mut self, query: &Query, answer: &HeadOutput) {
        let site = *self.pipeline.site();
        let cache = self.cache.view();
        let step = query.step(&site, &cache);
        for (member, row) in answer.rows.iter().enumerate() {
            let weights = row.sums.weights();
            let tokens = row.list.as_ref().map_or(&[][..], |list| &list.indices);
            let attended = Attended { tokens, weights: &weights };
            self.pipeline.feedback(&step.row(member), &attended);
        }
    }
}
