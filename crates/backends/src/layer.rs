//! One layer of one sequence: its KV heads, and a step over them.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView3, Axis, s};
use vattention_core::{
    Attention, Error, Options, Output, Pipeline, PipelineConfig, Result, RowReport, RowsView,
    Shape, Site, Storage, TokenClass,
    engine::{Selection, Timings},
    step::MAX_MAGNITUDE,
};

use crate::cache::{Cache, Room, View};
use crate::executor::{Executor, HeadOutput, Indexing};
use crate::head::{Head, Query};
use crate::input::{check_classes, check_lengths, check_numbers, check_shape, largest, limits};
use crate::workers::Workers;

/// What a KV head answers, and the tokens that were live then.
type Answer = (HeadOutput, Option<Arc<[u32]>>);

/// One layer of one sequence: checks its input, keeps keys and values in memory, makes the selectors
/// index them, and passes steps to an executor.
#[derive(Debug)]
pub struct Layer<M> {
    shape: Shape,
    scale: f32,
    storage: Storage,
    return_selection: bool,
    step: u32,
    heads: Vec<Head>,
    /// What each token is in the text, if a selector needs to know.
    classes: Option<Vec<TokenClass>>,
    workers: Workers,
    executor: M,
    timed: bool,
    /// If evicted tokens are freed: the fewest tokens that a row must see, of which some may be freed.
    frees: Option<usize>,
    knowledge: Knowledge,
}

/// Knowledge of the selectors about the tokens of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// The selectors know all that they have indexed.
    Whole,
    /// A truncation left no observed query, and no prompt was observed since.
    Unobserved,
    /// A selector panicked while it indexed something.
    Lost,
}

/// Builds the pipelines of a layer's KV heads, in their order.
///
/// # Errors
/// A shape or a pipeline that cannot work, by name.
pub fn build_pipelines(
    config: &Arc<PipelineConfig>,
    layer: usize,
    shape: Shape,
    options: &Options,
) -> Result<Vec<Pipeline>> {
    shape.check()?;
    let pipeline = |kv_head| {
        let site = Site { seed: config.seed, sequence: options.sequence, layer, kv_head, shape };
        let mut pipeline = Pipeline::new(config, site)?;
        if options.omit_error_bars {
            pipeline.omit_error_bars();
        }
        Ok(pipeline)
    };
    (0..shape.kv_heads).map(pipeline).collect()
}

impl<M: Executor> Layer<M> {
    /// A layer whose KV heads have these [pipelines](build_pipelines), before any token has arrived. KV
    /// heads share the workers.
    ///
    /// # Errors
    /// An option that cannot work, by name.
    pub fn new(
        pipelines: Vec<Pipeline>,
        options: &Options,
        workers: Workers,
        executor: M,
    ) -> Result<Self> {
        let shape = pipelines[0].site().shape;
        let scale = options.scale.unwrap_or(shape.default_scale());
        if !scale.is_finite() {
            return Err(Error::shape("scale", "a finite number", scale));
        }
        let head = |pipeline| {
            let cache = Cache::new(options.storage, shape.head_dim, shape.value_dim);
            Head::new(cache.in_pages(options.page_size), pipeline)
        };
        let heads: Vec<Head> = pipelines.into_iter().map(head).collect();
        Ok(Self {
            shape,
            scale,
            storage: options.storage,
            return_selection: options.return_selection,
            step: options.first_step,
            classes: heads[0].pipeline.needs_classes().map(|_| Vec::new()),
            heads,
            workers,
            executor,
            timed: options.timed,
            frees: options.free_evicted.then_some(0),
            knowledge: Knowledge::Whole,
        })
    }

    /// Refuses to continue after a selector has panicked while it indexed tokens or a prompt: its index
    /// does not have all of them.
    fn check_not_lost(&self) -> Result<()> {
        if self.knowledge == Knowledge::Lost { Err(Error::Lost) } else { Ok(()) }
    }

    /// Refuses a step after a truncation that left no observed query: it would read everything.
    fn check_learned(&self) -> Result<()> {
        match self.heads.iter().find_map(Head::awaits_prompt) {
            Some(selector) if self.knowledge == Knowledge::Unobserved => {
                Err(Error::Unobserved { selector: selector.into() })
            }
            _ => Ok(()),
        }
    }

    /// Checks queries and multiplies them by the scale: `[query_heads, queries, head_dim]`.
    fn scaled(&self, queries: &ArrayView3<'_, f32>) -> Result<Array3<f32>> {
        self.check_not_lost()?;
        check_shape("queries", queries.shape(), self.shape.query_heads, self.shape.head_dim)?;
        check_numbers("queries", (*queries).into(), f32::MAX)?;
        let scaled = queries.mapv(|q| q * self.scale);
        check_numbers("scaled queries", scaled.view().into(), MAX_MAGNITUDE)?;
        Ok(scaled)
    }

    /// Makes the selectors index the first `limit` tokens, if the executor wants it at this `time`. A
    /// panic of theirs loses the sequence.
    fn index(&mut self, time: Indexing, limit: usize) {
        if self.executor.indexing() != time {
            return;
        }
        // To wake threads would take longer than to index one token.
        let serial = self.heads[0].is_nearly_indexed(limit);
        let workers = if serial { &Workers::Serial } else { &self.workers };
        let classes = self.classes.as_deref();
        let knowledge = std::mem::replace(&mut self.knowledge, Knowledge::Lost);
        let heads = self.heads.iter_mut().collect();
        workers.map(heads, |head: &mut Head| head.index(limit, classes));
        self.knowledge = knowledge;
    }

    /// Frees what is evicted, if that is wanted; rows from now on see at least `visible` tokens.
    fn free(&mut self, visible: usize) {
        if let Some(least) = &mut self.frees {
            *least = visible.max(*least);
            self.workers.map(self.heads.iter_mut().collect(), |head: &mut Head| head.free(visible));
        }
    }

    /// Whether a selector waits for feedback.
    fn learns(&self) -> bool {
        self.heads.iter().any(|head| head.pipeline.needs_feedback())
    }

    /// Answers queries `[query_heads, queries, head_dim]`, one step each.
    fn answer(&mut self, scaled: &Array3<f32>, visible: &[usize]) -> Result<Output> {
        let count = visible.len();
        let (heads, group) = (self.shape.query_heads, self.shape.group());
        let mut out = Array3::zeros((heads, count, self.shape.value_dim));
        let mut log_denominator = Array2::zeros((heads, count));
        let mut rows: Vec<RowReport> = Vec::with_capacity(heads * count);
        let mut selection = self.return_selection.then(Selection::default);
        let mut timings = self.timed.then(Timings::default);
        for (t, &limit) in visible.iter().enumerate() {
            let query = scaled.slice(s![.., t, ..]).to_owned();
            for (kv_head, (answer, live)) in self.step(&query, limit)?.into_iter().enumerate() {
                let unobserved = self.heads[kv_head].awaits_prompt().is_some();
                if let Some(timings) = &mut timings {
                    *timings += answer.timings;
                }
                for (member, row) in answer.rows.iter().enumerate() {
                    let head = kv_head * group + member;
                    let softmax = &row.sums.sums;
                    let output = softmax.output();
                    out.slice_mut(s![head, t, ..])
                        .iter_mut()
                        .zip(output)
                        .for_each(|(out, x)| *out = x as f32);
                    log_denominator[[head, t]] = softmax.log_denominator() as f32;
                    rows.push(RowReport { unobserved, ..row.report });
                    if let (Some(selection), Some(list)) = (&mut selection, &row.list) {
                        selection.push(&list.indices, &list.probabilities, live.clone());
                    }
                }
            }
        }
        Ok(Output { out, log_denominator, rows, selection, timings })
    }

    /// Answers one query, `[query_heads, head_dim]`, of every KV head; with what was live then, if selections are returned and
    /// anything is evicted.
    fn step(&mut self, queries: &Array2<f32>, visible: usize) -> Result<Vec<Answer>> {
        self.index(Indexing::Lazy, visible);
        let queries = self.queries(queries, visible);
        let views: Vec<View<'_>> = self.heads.iter().map(|head| head.cache.view()).collect();
        let listed = self.return_selection || self.learns();
        let inputs = self.heads.iter().zip(&views).zip(&queries);
        let inputs = inputs.map(|((head, view), query)| head.input(view, query, listed)).collect();
        let answers = self.executor.answer(inputs, &self.workers)?;
        let lived = |head: &Head| {
            let live = self.return_selection.then(|| head.pipeline.live(visible)).flatten();
            live.map(|live| live.indices().into())
        };
        let lived: Vec<_> = self.heads.iter().map(lived).collect();
        if self.learns() {
            let heads: Vec<_> = self.heads.iter_mut().zip(&queries).zip(&answers).collect();
            self.workers.map(heads, |((head, query), answer)| head.learn(query, answer));
        }
        self.step = self.step.wrapping_add(1);
        Ok(answers.into_iter().zip(lived).collect())
    }

    /// One query of each KV head's group, at this step.
    fn queries(&self, queries: &Array2<f32>, visible: usize) -> Vec<Query> {
        let groups = queries.axis_chunks_iter(Axis(0), self.shape.group());
        let step = self.step;
        groups
            .map(|group| Query { group: group.iter().copied().collect(), visible, step })
            .collect()
    }
}

impl<M: Executor> Attention for Layer<M> {
    fn append_rows(
        &mut self,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        self.check_not_lost()?;
        let Shape { kv_heads, head_dim, value_dim, .. } = self.shape;
        check_shape("keys", keys.shape(), kv_heads, head_dim)?;
        check_shape("values", values.shape(), kv_heads, value_dim)?;
        check_lengths(keys.shape()[1], values.shape()[1], self.len())?;
        check_classes(self.heads[0].pipeline.needs_classes(), classes, keys.shape()[1])?;
        check_numbers("keys", keys, largest(self.storage))?;
        check_numbers("values", values, largest(self.storage))?;
        let (first, new) = (self.len(), keys.shape()[1]);
        // All that can fail comes before anything is written.
        let rooms: Vec<Room> =
            self.heads.iter().map(|head| head.cache.room(new)).collect::<Result<_>>()?;
        self.executor.append(first, keys, values)?;
        for (i, (head, room)) in self.heads.iter_mut().zip(rooms).enumerate() {
            head.append(keys.index(i), values.index(i), room);
        }
        if let Some(all) = &mut self.classes {
            all.extend_from_slice(classes.unwrap_or_default());
        }
        self.index(Indexing::Eager, self.len());
        Ok(())
    }

    fn observe(&mut self, queries: ArrayView3<'_, f32>) -> Result<()> {
        let scaled = self.scaled(&queries)?;
        if scaled.dim().1 > self.len() {
            let expected = format!("at most {} (the tokens appended)", self.len());
            return Err(Error::shape("prompt queries", expected, scaled.dim().1));
        }
        let groups = scaled.axis_chunks_iter(Axis(0), self.shape.group());
        for (head, queries) in self.heads.iter_mut().zip(groups) {
            head.observe(queries);
        }
        self.knowledge = Knowledge::Whole;
        self.index(Indexing::Eager, self.len());
        if self.executor.indexing() == Indexing::Eager {
            self.free(self.len());
        }
        Ok(())
    }

    fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        let scaled = self.scaled(&queries)?;
        self.check_learned()?;
        let visible = limits(visible, scaled.dim().1, self.len())?;
        let least = self.frees.unwrap_or(0);
        if let Some(i) = visible.iter().position(|&limit| limit < least) {
            let expected = format!("at least {least}, as before: evicted tokens are freed");
            return Err(Error::shape(format!("visible[{i}]"), expected, visible[i]));
        }
        // Only steps before the one that fails can have taught the selectors something.
        let pipelines: Option<Vec<Pipeline>> = (M::FALLIBLE && visible.len() > 1 && self.learns())
            .then(|| self.heads.iter().map(|head| head.pipeline.clone()).collect());
        let step = self.step;
        let answered = self.answer(&scaled, &visible);
        if answered.is_err() {
            self.step = step;
            let pipelines = pipelines.into_iter().flatten();
            self.heads.iter_mut().zip(pipelines).for_each(|(head, was)| head.pipeline = was);
        } else {
            self.free(visible.iter().copied().max().unwrap_or(0));
        }
        answered
    }

    fn truncate(&mut self, tokens: usize) -> Result<()> {
        self.check_not_lost()?;
        if tokens > self.len() {
            let expected = format!("at most {} (the tokens appended)", self.len());
            return Err(Error::shape("tokens to keep", expected, tokens));
        }
        if self.learns() {
            return Err(Error::Learns);
        }
        if self.frees.is_some_and(|least| least > 0) {
            return Err(Error::Freed);
        }
        let executor = self.executor.fork(tokens)?;
        let heads: Vec<Head> =
            self.heads.iter().map(|head| head.truncated(tokens)).collect::<Result<_>>()?;
        let had_prompt = self.heads[0].has_prompt() || self.knowledge == Knowledge::Unobserved;
        let is_unobserved = tokens > 0 && had_prompt && !heads[0].has_prompt();
        self.knowledge = if is_unobserved { Knowledge::Unobserved } else { Knowledge::Whole };
        self.heads = heads;
        self.executor = executor;
        if let Some(classes) = &mut self.classes {
            classes.truncate(tokens);
        }
        self.index(Indexing::Eager, tokens);
        Ok(())
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>> {
        let heads = self.heads.iter().map(Head::fork).collect::<Result<_>>()?;
        let executor = self.executor.fork(self.len())?;
        let (classes, workers) = (self.classes.clone(), self.workers.clone());
        let mut fork = Self { heads, classes, workers, executor, ..*self };
        if let Some(sequence) = sequence {
            fork.heads.iter_mut().for_each(|head| head.pipeline.set_sequence(sequence));
        }
        Ok(Box::new(fork))
    }

    fn len(&self) -> usize {
        self.heads[0].cache.len()
    }

    fn index_bytes(&self) -> usize {
        let selectors = self.heads.iter().map(|head| head.pipeline.index_bytes());
        selectors.sum::<usize>() + self.executor.index_bytes()
    }

    fn held_bytes(&self) -> usize {
        let heads = self.heads.iter().map(|head| head.cache.held_bytes());
        heads.sum::<usize>() + self.executor.row_bytes() * self.len() * self.heads.len()
    }
}
