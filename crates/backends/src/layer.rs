//! One layer of one sequence: its KV heads, and the steps over them.

mod rewind;
mod stored;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView3, Axis, s};
use vattention_core::{
    Attention, Error, Options, Output, Pipeline, PipelineConfig, Result, RowsView, Shape, Site,
    Storage, TokenClass,
    engine::{AttentionState, KeyValueRows, Selection, SequencePoint, Timings},
    step::MAX_MAGNITUDE,
};

use crate::cache::{Cache, CacheView, Room};
use crate::executor::{Executor, HeadOutput, Indexing};
use crate::head::{GroupQuery, LayerHead};
use crate::input::{check_classes, check_lengths, check_numbers, check_shape, limits};
use crate::output::push_row;
use crate::pipelines::{GroupSoftmax, build_pipeline, check_softmax};
use crate::workers::Workers;

/// Result of a step of one KV head.
struct HeadStep {
    output: HeadOutput,
    /// Tokens that were live at the step, if selections are returned and tokens can be evicted.
    live: Option<Arc<[u32]>>,
}

/// One layer of one sequence. It checks input, stores keys and values, makes the selectors index
/// them, and passes steps to an executor.
#[derive(Debug)]
pub struct Layer<X> {
    shape: Shape,
    scale: f32,
    storage: Storage,
    return_selection: bool,
    /// Number of the next step.
    step: u32,
    /// True after the first step.
    stepped: bool,
    heads: Vec<LayerHead>,
    /// Class of each token, if a selector needs classes.
    classes: Option<Vec<TokenClass>>,
    workers: Workers,
    executor: X,
    timed: bool,
    /// Least number of tokens that further queries must see, because evicted ones among these
    /// tokens may be freed; `None` if rows of evicted tokens are never freed.
    least_visible: Option<usize>,
    /// Number of newest tokens that can be removed although rows are freed.
    rewindable: usize,
    index_state: IndexState,
}

/// Completeness of the selectors' indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexState {
    /// The indexes contain all tokens and prompts that were passed to them.
    Complete,
    /// A truncation removed all observed queries, and no prompt was observed since then.
    Unobserved,
    /// A selector panicked while it indexed tokens or a prompt.
    Lost,
}

/// Builds the pipelines of a layer's KV heads, in their order.
///
/// # Errors
/// If the shape is invalid, or a plug-in of the pipeline does not support it.
pub fn build_pipelines(
    config: &Arc<PipelineConfig>,
    layer: usize,
    shape: Shape,
    options: &Options,
) -> Result<Vec<Pipeline>> {
    shape.check()?;
    let sequence = options.sequence;
    let site = |kv_head| Site { seed: config.seed, sequence, layer, kv_head, shape };
    (0..shape.kv_heads).map(|kv_head| build_pipeline(config, site(kv_head), options)).collect()
}

impl<X: Executor> Layer<X> {
    /// Creates a layer without tokens, with a KV head for each of the [pipelines](build_pipelines).
    /// KV heads share the workers.
    ///
    /// # Errors
    /// If the scale is not finite, or if the [form of the softmax](Options::softmax_form) is
    /// invalid.
    pub fn new(
        pipelines: Vec<Pipeline>,
        options: &Options,
        workers: Workers,
        executor: X,
    ) -> Result<Self> {
        let shape = pipelines[0].site().shape;
        let scale = check_softmax(shape, options)?;
        let head = |pipeline: Pipeline| {
            let cache = Cache::new(options.storage, shape.head_dim, shape.value_dim);
            let softmax = GroupSoftmax::new(pipeline.site(), options);
            LayerHead::new(cache.in_pages(options.page_size), pipeline, softmax)
        };
        let heads: Vec<LayerHead> = pipelines.into_iter().map(head).collect();
        Ok(Self {
            shape,
            scale,
            storage: options.storage,
            return_selection: options.return_selection,
            step: options.first_step,
            stepped: false,
            classes: heads[0].pipeline.needs_classes().map(|_| Vec::new()),
            heads,
            workers,
            executor,
            timed: options.timed,
            least_visible: options.free_evicted.then_some(0),
            rewindable: options.rewindable,
            index_state: IndexState::Complete,
        })
    }

    /// Returns an error if a selector's index is incomplete, because the selector panicked while it
    /// indexed tokens or a prompt.
    fn check_not_lost(&self) -> Result<()> {
        if self.index_state == IndexState::Lost { Err(Error::Lost) } else { Ok(()) }
    }

    /// Returns an error after a truncation that removed all observed queries, if a selector learns
    /// from prompts: without a prompt, a step would read all tokens.
    fn check_learned(&self) -> Result<()> {
        match self.heads.iter().find_map(LayerHead::awaits_prompt) {
            Some(selector) if self.index_state == IndexState::Unobserved => {
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

    /// Makes the selectors index the first `limit` tokens, if the executor indexes at this `time`.
    /// If a selector panics, the sequence cannot be continued.
    fn index(&mut self, time: Indexing, limit: usize) {
        if self.executor.indexing() != time {
            return;
        }
        // Waking threads takes longer than indexing one token.
        let serial = self.heads[0].is_nearly_indexed(limit);
        let workers = if serial { &Workers::Serial } else { &self.workers };
        let (classes, scale) = (self.classes.as_deref(), self.scale);
        let index_state = std::mem::replace(&mut self.index_state, IndexState::Lost);
        let heads = self.heads.iter_mut().collect();
        workers.map(heads, |head: &mut LayerHead| head.index(limit, classes, scale));
        self.index_state = index_state;
    }

    /// Frees rows that were evicted [`rewindable`](Options::rewindable) tokens ago, if the options
    /// request it. Further queries must then see at least `visible` tokens without these.
    fn free(&mut self, visible: usize) {
        if let Some(least) = &mut self.least_visible {
            let visible = visible.saturating_sub(self.rewindable);
            *least = visible.max(*least);
            self.workers
                .map(self.heads.iter_mut().collect(), |head: &mut LayerHead| head.free(visible));
        }
    }

    /// Returns true if a selector needs feedback.
    fn learns(&self) -> bool {
        self.heads.iter().any(|head| head.pipeline.needs_feedback())
    }

    /// Computes the output for queries `[query_heads, queries, head_dim]`, in one step per query.
    fn execute(&mut self, scaled: &Array3<f32>, visible: &[usize]) -> Result<Output> {
        let count = visible.len();
        let (heads, group) = (self.shape.query_heads, self.shape.group());
        let mut output = Output::zeros([heads, count, self.shape.value_dim]);
        output.selection = self.return_selection.then(Selection::default);
        output.timings = self.timed.then(Timings::default);
        for (t, &limit) in visible.iter().enumerate() {
            let query = scaled.slice(s![.., t, ..]).to_owned();
            let steps = self.execute_step(&query, limit)?;
            for (kv_head, HeadStep { output: step, live }) in steps.into_iter().enumerate() {
                let unobserved = self.heads[kv_head].awaits_prompt().is_some();
                if let Some(timings) = &mut output.timings {
                    *timings += step.timings;
                }
                for (member, row) in step.rows.iter().enumerate() {
                    push_row(&mut output, kv_head * group + member, t, row);
                    if let Some(report) = output.rows.last_mut() {
                        report.unobserved = unobserved;
                    }
                    if let (Some(selection), Some(list)) = (&mut output.selection, &row.list) {
                        selection.push(&list.indices, &list.probabilities, live.clone());
                    }
                }
            }
        }
        Ok(output)
    }

    /// Computes one step of every KV head, for queries `[query_heads, head_dim]`.
    fn execute_step(&mut self, queries: &Array2<f32>, visible: usize) -> Result<Vec<HeadStep>> {
        self.index(Indexing::Lazy, visible);
        let queries = self.queries(queries, visible);
        let views: Vec<CacheView<'_>> = self.heads.iter().map(|head| head.cache.view()).collect();
        let listed = self.return_selection || self.learns();
        let mut inputs = Vec::with_capacity(self.heads.len());
        for (i, head) in self.heads.iter().enumerate() {
            let mut input = head.input(&views[i], &queries[i], listed);
            input.step.threads = self.workers.threads();
            inputs.push(input);
        }
        let mut outputs = self.executor.execute(inputs, &self.workers)?;
        for ((head, query), output) in self.heads.iter().zip(&queries).zip(&mut outputs) {
            head.count_rounding(query, output);
        }
        // Feedback may evict tokens that were live at this step.
        let find_live = |head: &LayerHead| -> Option<Arc<[u32]>> {
            let live = self.return_selection.then(|| head.pipeline.live(visible)).flatten();
            live.map(|live| live.indices().into())
        };
        let live: Vec<_> = self.heads.iter().map(find_live).collect();
        if self.learns() {
            let heads: Vec<_> = self.heads.iter_mut().zip(&queries).zip(&outputs).collect();
            self.workers.map(heads, |((head, query), output)| head.learn(query, output));
        }
        self.step = self.step.wrapping_add(1);
        let steps = outputs.into_iter().zip(live);
        Ok(steps.map(|(output, live)| HeadStep { output, live }).collect())
    }

    fn copy(&self) -> Result<Self> {
        let heads = self.heads.iter().map(LayerHead::fork).collect::<Result<_>>()?;
        let executor = self.executor.fork(self.len())?;
        let (classes, workers) = (self.classes.clone(), self.workers.clone());
        Ok(Self { heads, classes, workers, executor, ..*self })
    }

    /// Queries of each KV head's group, at this step.
    fn queries(&self, queries: &Array2<f32>, visible: usize) -> Vec<GroupQuery> {
        let groups = queries.axis_chunks_iter(Axis(0), self.shape.group());
        let step = self.step;
        groups
            .map(|group| GroupQuery { group: group.iter().copied().collect(), visible, step })
            .collect()
    }
}

impl<X: Executor> Attention for Layer<X> {
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
        check_numbers("keys", keys, self.storage.largest())?;
        check_numbers("values", values, self.storage.largest())?;
        let (first, new) = (self.len(), keys.shape()[1]);
        // Everything that can fail happens before anything is written.
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
        let groups = queries.axis_chunks_iter(Axis(0), self.shape.group());
        for (head, queries) in self.heads.iter_mut().zip(groups) {
            head.observe(queries);
        }
        self.index_state = IndexState::Complete;
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
        let least = self.least_visible.unwrap_or(0);
        if let Some(i) = visible.iter().position(|&limit| limit < least) {
            let expected = format!("at least {least}, because evicted tokens below are freed");
            return Err(Error::shape(format!("visible[{i}]"), expected, visible[i]));
        }
        // A step that fails gives no feedback. But earlier steps of this call may have given some,
        // which an error must undo.
        let pipelines: Option<Vec<Pipeline>> = (X::FALLIBLE && visible.len() > 1 && self.learns())
            .then(|| self.heads.iter().map(|head| head.pipeline.clone()).collect());
        let step = self.step;
        let output = self.execute(&scaled, &visible);
        if output.is_err() {
            self.step = step;
            let pipelines = pipelines.into_iter().flatten();
            self.heads.iter_mut().zip(pipelines).for_each(|(head, was)| head.pipeline = was);
        } else {
            self.stepped |= !visible.is_empty();
            self.free(visible.iter().copied().max().unwrap_or(0));
        }
        output
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
        if self.least_visible.is_some_and(|least| least > 0) {
            return Err(Error::Freed);
        }
        let executor = self.executor.fork(tokens)?;
        let heads: Vec<LayerHead> =
            self.heads.iter().map(|head| head.truncated(tokens)).collect::<Result<_>>()?;
        let had_prompt = self.heads[0].has_prompt() || self.index_state == IndexState::Unobserved;
        let is_unobserved = tokens > 0 && had_prompt && !heads[0].has_prompt();
        self.index_state =
            if is_unobserved { IndexState::Unobserved } else { IndexState::Complete };
        self.heads = heads;
        self.executor = executor;
        if let Some(classes) = &mut self.classes {
            classes.truncate(tokens);
        }
        self.index(Indexing::Eager, tokens);
        Ok(())
    }

    fn checkpoint(&self) -> Result<SequencePoint> {
        self.current_point()
    }

    fn rewind(&mut self, to: &SequencePoint) -> Result<()> {
        self.rewind_to(to)
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>> {
        let mut fork = self.copy()?;
        if let Some(sequence) = sequence {
            fork.heads.iter_mut().for_each(|head| head.pipeline.set_sequence(sequence));
        }
        Ok(Box::new(fork))
    }

    fn fork_adjusted(&self, pipeline: &Arc<PipelineConfig>) -> Result<Option<Box<dyn Attention>>> {
        if self.stepped || !self.executor.plans_at_steps() {
            return Ok(None);
        }
        let mut fork = self.copy()?;
        let adjusted = fork.heads.iter_mut().all(|head| head.pipeline.adjust(pipeline));
        Ok(adjusted.then(|| Box::new(fork) as _))
    }

    fn read_rows(&self, tokens: Range<usize>) -> Result<KeyValueRows> {
        self.stored_rows(tokens)
    }

    fn state(&self) -> Result<AttentionState> {
        self.stored_state()
    }

    fn resume(&mut self, state: &AttentionState) -> Result<()> {
        self.resume_state(state)
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
