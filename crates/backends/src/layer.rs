//! One layer of one sequence: its KV heads, and a step over them.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView3, Axis, s};
use rayon::prelude::*;
use vattention_core::{
    Attended, Attention, Error, LARGEST, Options, Output, Pipeline, PipelineConfig, Prompt,
    Reading, Result, RowReport, Selection, Shape, Site, Softmax, Step, Storage, Timings,
};

use crate::cache::{Cache, Room, View};
use crate::input::{check_lengths, check_numbers, check_shape, largest, limits};

/// What backends differ in: how the query heads of one KV head answer a query.
pub(crate) type Machine = fn(&Situation<'_>) -> HeadStep;

/// One KV head at one step.
pub(crate) struct Situation<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) step: &'a Step<'a>,
    pub(crate) cache: &'a View<'a>,
    pub(crate) how: How,
}

/// What a machine may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Read what the pipeline chose even where reading everything would be faster.
    pub(crate) literal: bool,
    /// Share the rows of one KV head out among threads.
    pub(crate) split: bool,
}

/// What one KV head makes of one query.
pub(crate) struct HeadStep {
    /// Of each member of the group.
    pub(crate) rows: Vec<RowSums>,
    pub(crate) reading: Reading,
    pub(crate) timings: Timings,
}

/// What a machine returns for one row.
#[derive(Clone, Debug)]
pub(crate) struct RowSums {
    pub(crate) sums: Softmax,
    /// Logits of the tokens read, ascending; if a selector waits for feedback.
    pub(crate) logits: Vec<f64>,
}

/// How KV heads are gone over.
#[derive(Clone, Debug)]
pub(crate) enum Workers {
    /// One after the other, on the calling thread.
    Serial,
    /// In parallel, on rayon's global pool.
    Global,
    /// In parallel, on a pool of this sequence.
    Own(Arc<rayon::ThreadPool>),
}

impl Workers {
    fn threads(&self) -> usize {
        match self {
            Self::Serial => 1,
            Self::Global => rayon::current_num_threads(),
            Self::Own(pool) => pool.current_num_threads(),
        }
    }
}

/// One layer of one sequence on any backend of this crate.
pub(crate) struct Layer {
    shape: Shape,
    scale: f32,
    storage: Storage,
    record: bool,
    step: u32,
    heads: Vec<Head>,
    workers: Workers,
    machine: Machine,
    how: How,
    timed: bool,
    /// Whether a selector has panicked while it was shown new tokens.
    lost: bool,
}

/// One KV head.
struct Head {
    cache: Cache,
    pipeline: Pipeline,
}

impl Layer {
    pub(crate) fn new(
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
        workers: Workers,
        machine: Machine,
    ) -> Result<Self> {
        shape.check()?;
        let scale = options.scale.unwrap_or(shape.default_scale());
        if !scale.is_finite() {
            return Err(Error::shape("scale", "a finite number", scale));
        }
        let head = |kv_head| {
            let site =
                Site { seed: pipeline.seed, sequence: options.sequence, layer, kv_head, shape };
            let cache = Cache::new(options.storage, shape.head_dim, shape.value_dim);
            Ok(Head { cache, pipeline: Pipeline::new(pipeline, site)? })
        };
        Ok(Self {
            shape,
            scale,
            storage: options.storage,
            record: options.record,
            step: options.first_step,
            heads: (0..shape.kv_heads).map(head).collect::<Result<_>>()?,
            how: How { literal: options.literal, split: workers.threads() > 1 },
            timed: options.timed,
            lost: false,
            workers,
            machine,
        })
    }

    /// Refuses to go on after a selector has panicked while it was shown new tokens: its index does
    /// not know them all.
    fn check_not_lost(&self) -> Result<()> {
        if self.lost { Err(Error::Lost) } else { Ok(()) }
    }

    /// Checks queries and multiplies them by the scale: `[query_heads, queries, head_dim]`.
    fn scaled(&self, queries: &ArrayView3<'_, f32>) -> Result<Array3<f32>> {
        self.check_not_lost()?;
        check_shape("queries", queries, self.shape.query_heads, self.shape.head_dim)?;
        check_numbers("queries", queries, f32::MAX)?;
        let scaled = queries.mapv(|q| q * self.scale);
        check_numbers("scaled queries", &scaled.view(), LARGEST)?;
        Ok(scaled)
    }

    /// Answers one query, `[query_heads, head_dim]`, of every KV head.
    fn step(&mut self, queries: &Array2<f32>, visible: usize) -> Vec<HeadStep> {
        let (step, machine, how) = (self.step, self.machine, self.how);
        let rows = self.shape.group();
        let groups: Vec<Vec<f32>> =
            queries.axis_chunks_iter(Axis(0), rows).map(|g| g.iter().copied().collect()).collect();
        let work = groups.into_iter().zip(&mut self.heads);
        let answer =
            |(group, head): (Vec<f32>, &mut Head)| head.answer(&group, visible, step, machine, how);
        let answers = match &self.workers {
            Workers::Serial => work.map(answer).collect(),
            Workers::Global => work.collect::<Vec<_>>().into_par_iter().map(answer).collect(),
            Workers::Own(pool) => {
                let work: Vec<_> = work.collect();
                pool.install(|| work.into_par_iter().map(answer).collect())
            }
        };
        self.step = self.step.wrapping_add(1);
        answers
    }
}

impl Head {
    fn fork(&self) -> Result<Self> {
        Ok(Self { cache: self.cache.fork()?, pipeline: self.pipeline.clone() })
    }

    /// Answers one query of the group, `[group · head_dim]`.
    fn answer(
        &mut self,
        queries: &[f32],
        visible: usize,
        step: u32,
        machine: Machine,
        how: How,
    ) -> HeadStep {
        let site = *self.pipeline.site();
        let cache = self.cache.view();
        let (keys, values) = (cache.keys(), cache.values());
        let step = Step { site: &site, queries, keys, values, visible, step };
        let situation = Situation { pipeline: &self.pipeline, step: &step, cache: &cache, how };
        let answer = machine(&situation);
        if self.pipeline.needs_feedback() {
            for (member, row) in answer.rows.iter().enumerate() {
                let weights = row.weights();
                let list = answer.reading.list(member);
                let attended = Attended { tokens: &list.indices, weights: &weights };
                self.pipeline.feedback(&step.row(member), &attended);
            }
        }
        answer
    }
}

impl RowSums {
    /// `e / D^` of each listed token.
    fn weights(&self) -> Vec<f32> {
        let log_d = self.sums.log_denominator();
        self.logits.iter().map(|logit| (logit - log_d).exp() as f32).collect()
    }
}

impl Attention for Layer {
    fn append(&mut self, keys: ArrayView3<'_, f32>, values: ArrayView3<'_, f32>) -> Result<()> {
        self.check_not_lost()?;
        let Shape { kv_heads, head_dim, value_dim, .. } = self.shape;
        check_shape("keys", &keys, kv_heads, head_dim)?;
        check_shape("values", &values, kv_heads, value_dim)?;
        check_lengths(keys.dim().1, values.dim().1, self.len())?;
        check_numbers("keys", &keys, largest(self.storage))?;
        check_numbers("values", &values, largest(self.storage))?;
        let (first, new) = (self.len(), keys.dim().1);
        // All that can fail comes before anything is written.
        let rooms: Vec<Room> =
            self.heads.iter().map(|head| head.cache.room(new)).collect::<Result<_>>()?;
        let rows = keys.outer_iter().zip(values.outer_iter());
        for ((head, room), (keys, values)) in self.heads.iter_mut().zip(rooms).zip(rows) {
            head.cache.append(keys, values, room);
        }
        self.lost = true;
        for head in &mut self.heads {
            head.pipeline.append(&head.cache.view().since(first));
        }
        self.lost = false;
        Ok(())
    }

    fn observe(&mut self, queries: ArrayView3<'_, f32>) -> Result<()> {
        let scaled = self.scaled(&queries)?;
        if scaled.dim().1 > self.len() {
            let expected = format!("at most {} (the tokens appended)", self.len());
            return Err(Error::shape("prompt queries", expected, scaled.dim().1));
        }
        for (head, queries) in
            self.heads.iter_mut().zip(scaled.axis_chunks_iter(Axis(0), self.shape.group()))
        {
            let site = *head.pipeline.site();
            let view = head.cache.view();
            let (keys, values) = (view.keys(), view.values());
            head.pipeline.observe(&Prompt { site: &site, queries, keys, values });
        }
        Ok(())
    }

    fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        let scaled = self.scaled(&queries)?;
        let count = scaled.dim().1;
        let visible = limits(visible, count, self.len())?;
        let (heads, group) = (self.shape.query_heads, self.shape.group());
        let mut out = Array3::zeros((heads, count, self.shape.value_dim));
        let mut log_denominator = Array2::zeros((heads, count));
        let mut rows: Vec<RowReport> = Vec::with_capacity(heads * count);
        let mut selection = self.record.then(Selection::default);
        let mut timings = self.timed.then(Timings::default);
        for (t, &limit) in visible.iter().enumerate() {
            let query = scaled.slice(s![.., t, ..]).to_owned();
            for (kv_head, answer) in self.step(&query, limit).into_iter().enumerate() {
                if let Some(timings) = &mut timings {
                    *timings += answer.timings;
                }
                for (member, row) in answer.rows.iter().enumerate() {
                    let head = kv_head * group + member;
                    let output = row.sums.output();
                    out.slice_mut(s![head, t, ..])
                        .iter_mut()
                        .zip(output)
                        .for_each(|(out, x)| *out = x as f32);
                    log_denominator[[head, t]] = row.sums.log_denominator() as f32;
                    rows.push(answer.reading.report(member));
                    if let Some(selection) = &mut selection {
                        let list = answer.reading.list(member);
                        selection.push(&list.indices, &list.probabilities);
                    }
                }
            }
        }
        Ok(Output { out, log_denominator, rows, selection, timings })
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>> {
        let heads = self.heads.iter().map(Head::fork).collect::<Result<_>>()?;
        let mut fork = Self { heads, workers: self.workers.clone(), ..*self };
        if let Some(sequence) = sequence {
            fork.heads.iter_mut().for_each(|head| head.pipeline.set_sequence(sequence));
        }
        Ok(Box::new(fork))
    }

    fn len(&self) -> usize {
        self.heads[0].cache.len()
    }

    fn index_bytes(&self) -> usize {
        self.heads.iter().map(|head| head.pipeline.index_bytes()).sum()
    }
}
