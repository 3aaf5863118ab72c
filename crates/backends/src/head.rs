//! One KV head of a sequence: its rows, and the pipeline that chooses among them.

use ndarray::{ArcArray, ArrayView3, Ix2, Ix3};
use vattention_core::{
    Attended, NewTokens, Pipeline, PromptQueries, Result, RowsView, Site, Step, TokenClass,
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
    pub(crate) fn truncated(&self, tokens: usize) -> Result<Self> {
        Ok(Self {
            cache: self.cache.truncated(tokens)?,
            pipeline: self.pipeline.truncated(tokens)?,
            shown: 0,
            prompts: self.prompts[..self.prompts_within(tokens)].to_vec(),
            prompts_shown: 0,
        })
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
                pipeline.show(&NewTokens { classes, ..view.range(*shown..tokens) });
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
