//! A step: by a routine on the device, or, where the pipeline has a part that is not known there, the
//! host chooses and the device reads what it chose.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use vattention_backends::{Executor, HeadInput, HeadOutput, RowSums, Workers};
use vattention_core::{
    Options, PipelineConfig, Plan, Result, RowsView, Shape, Share,
    engine::Timings,
    pipeline::{Read, Reading},
    step::Softmax,
};

use crate::Device;
use crate::answered::Answered;
use crate::index::Index;
use crate::launch::{Array, Attend, CombineSums, Lists, Logits, RowLayout};
use crate::networks::Networks;
use crate::routine::{HeadInputs, Kind, Routine, Routines};
use crate::rows::Rows;

/// Rows of a page: `2^8`.
const LOG2_PAGE: u32 = 8;

/// One layer of one sequence on a device.
#[derive(Debug)]
pub(crate) struct GpuExecutor<D: Device> {
    device: D,
    shape: Shape,
    rows: Rows<D>,
    /// By the number of query heads that read one list.
    attend: BTreeMap<usize, Attend<D>>,
    combine: CombineSums<D>,
    routines: Routines<D>,
    /// The one that was used last.
    routine: Option<Arc<Routine<D>>>,
    /// Of each KV head.
    indexes: Vec<Index<D>>,
}

impl<D: Device> GpuExecutor<D> {
    /// No rows, and the kernels compiled that the pipeline needs.
    pub(crate) fn new(
        (device, routines, networks): (D, Routines<D>, Networks<D>),
        pipeline: &PipelineConfig,
        shape: Shape,
        options: &Options,
    ) -> Result<Self> {
        let layout = RowLayout::new(options.storage, shape.head_dim, shape.value_dim, LOG2_PAGE)?;
        let own_lists = (pipeline.share == Share::Head).then_some(1);
        let readers = std::iter::once(shape.group()).chain(own_lists);
        let attend = readers
            .map(|readers| Ok((readers, Attend::new(&device, layout, readers)?)))
            .collect::<Result<_>>()?;
        let combine = CombineSums::new(&device)?;
        let rows = Rows::new(device.clone(), layout, shape.kv_heads, options.placement)?;
        let index = Index::new(device.clone(), networks, layout);
        let indexes = (0..shape.kv_heads).map(|_| index.emptied()).collect();
        Ok(Self { device, shape, rows, attend, combine, routines, routine: None, indexes })
    }

    /// What each query head makes of what it reads: one launch for all KV heads, and one for the
    /// sums.
    fn attend(&self, heads: &[HeadInput<'_>], readings: &[&Reading]) -> Result<Vec<RowSums>> {
        let reads: Vec<&Read> = readings.iter().flat_map(|reading| reading.reads()).collect();
        let lists = lists(&self.device, &reads)?;
        let rows: Vec<_> = readings
            .iter()
            .zip(self.rows.heads())
            .flat_map(|(reading, head)| reading.reads().iter().map(move |_| head))
            .collect();
        let queries: Vec<f32> = heads.iter().flat_map(|head| head.step.queries).copied().collect();
        let queries = Array::new(&self.device, &queries)?;
        let readers = self.shape.query_heads / reads.len();
        let logits = heads
            .iter()
            .any(|head| head.pipeline.needs_feedback())
            .then(|| Logits::new(&self.device, reads.len(), readers, lists.longest()))
            .transpose()?;
        let records = self.attend[&readers].run(&rows, &lists, &queries, logits.as_ref())?;
        let sums = self.combine.run(&records, &lists)?.read()?;
        let logits = match &logits {
            Some(logits) => of_rows(&logits.read()?, readers, &reads),
            None => vec![Vec::new(); self.shape.query_heads],
        };
        let row = |(sums, logits): (Softmax, Vec<f64>)| RowSums { sums, logits };
        Ok(sums.into_iter().zip(logits).map(row).collect())
    }

    /// What each KV head does at a step, and what a routine has to be recorded for, if all do the same.
    fn planned<'h>(
        &self,
        heads: &'h [HeadInput<'_>],
        workers: &Workers,
    ) -> Option<(Vec<Plan<'h>>, Kind)> {
        let plans = workers.map(heads.iter().collect(), |head| head.pipeline.plan(&head.step));
        let plans: Vec<Plan<'_>> = plans.into_iter().collect::<Option<_>>()?;
        let tokens = heads[0].step.keys.len();
        let kind = |plan| Kind::new(plan, self.shape, self.rows.layout(), tokens);
        let first = kind(&plans[0])?;
        let alike = plans[1..].iter().all(|plan| kind(plan).as_ref() == Some(&first));
        alike.then_some((plans, first))
    }

    /// The device does everything.
    fn answer_by_routine(
        &mut self,
        heads: &[HeadInput<'_>],
        plans: Vec<Plan<'_>>,
        kind: &Kind,
    ) -> Result<Vec<HeadOutput>> {
        let begin = Instant::now();
        let routine = match &self.routine {
            Some(routine) if routine.kind() == kind => routine.clone(),
            _ => self.routines.get(&self.device, kind)?,
        };
        self.routine = Some(routine.clone());
        let mut inputs = Vec::with_capacity(heads.len());
        for (i, (head, plan)) in heads.iter().zip(plans).enumerate() {
            let indexes = self.indexes[i].prepare(&plan, kind.capacity, head.step.visible)?;
            let lists = if plan.sample.is_some() { kind.lists() / heads.len() } else { 0 };
            let order = |list| head.pipeline.order(&head.step, list).parameters();
            let orders = (0..lists).map(order).collect();
            let table = self.rows.heads()[i].table();
            inputs.push(HeadInputs { plan, step: &head.step, orders, table, indexes });
        }
        let (found, tokens) = routine.run(&inputs, heads.iter().any(|head| head.listed))?;
        for (index, inputs) in self.indexes.iter_mut().zip(&inputs) {
            index.advance(&inputs.indexes, inputs.step.visible);
        }
        let answered = Answered { kind, found, tokens };
        let mut steps: Vec<HeadOutput> =
            (0..heads.len()).map(|i| answered.head(i, &heads[i], &inputs[i].plan)).collect();
        // The device answers all KV heads at once: the time is reported once.
        steps[0].timings.attend = begin.elapsed();
        Ok(steps)
    }
}

impl<D: Device> Executor for GpuExecutor<D> {
    const FALLIBLE: bool = true;
    const EXECUTES_PLANS: bool = true;

    fn append(&mut self, first: usize, keys: RowsView<'_>, values: RowsView<'_>) -> Result<()> {
        self.rows.write(first, keys, values)
    }

    fn supports_plan(&self, heads: &[HeadInput<'_>], workers: &Workers) -> bool {
        self.planned(heads, workers).is_some()
    }

    fn execute_plan(
        &mut self,
        heads: &[HeadInput<'_>],
        workers: &Workers,
    ) -> Result<Option<Vec<HeadOutput>>> {
        let Some((plans, kind)) = self.planned(heads, workers) else { return Ok(None) };
        self.answer_by_routine(heads, plans, &kind).map(Some)
    }

    /// The pipelines choose on the host.
    fn answer(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        let mut chosen = workers.map(heads.iter().collect(), choose);
        let begin = Instant::now();
        let readings: Vec<&Reading> = chosen.iter().map(|(reading, _)| reading).collect();
        let mut rows = self.attend(&heads, &readings)?.into_iter();
        // The device answers all KV heads at once: the time is reported once.
        chosen[0].1.attend = begin.elapsed();
        let step = |(head, (reading, timings)): (&HeadInput<'_>, (Reading, Timings))| {
            let sums = rows.by_ref().take(self.shape.group()).collect();
            HeadOutput::new(head, sums, &reading, timings)
        };
        Ok(heads.iter().zip(chosen).map(step).collect())
    }

    fn index_bytes(&self) -> usize {
        self.indexes.iter().map(Index::bytes).sum()
    }

    fn row_bytes(&self) -> usize {
        self.rows.layout().row_bytes()
    }

    fn fork(&self, len: usize) -> Result<Self> {
        Ok(Self {
            device: self.device.clone(),
            rows: self.rows.fork(len)?,
            attend: self.attend.clone(),
            combine: self.combine.clone(),
            routines: self.routines.clone(),
            routine: self.routine.clone(),
            indexes: self.indexes.iter().map(Index::emptied).collect(),
            ..*self
        })
    }
}

/// Selects and samples on the host, as it is defined.
fn choose(head: &HeadInput<'_>) -> (Reading, Timings) {
    let begin = Instant::now();
    let choice = head.pipeline.choose(&head.step);
    let select = begin.elapsed();
    let reading = head.pipeline.complete(&head.step, &choice);
    let sample = begin.elapsed().saturating_sub(select);
    (reading, Timings { select, sample, ..Timings::default() })
}

/// What is read, for the device.
fn lists<D: Device>(device: &D, reads: &[&Read]) -> Result<Lists<D>> {
    if reads.iter().all(|read| read.picks().is_none()) {
        let lengths: Vec<usize> = reads.iter().map(|read| read.len()).collect();
        return Lists::beginnings(device, &lengths);
    }
    let (mut indptr, mut indices, mut probabilities) = (vec![0], Vec::new(), Vec::new());
    for read in reads {
        let list = read.list();
        indices.extend(list.indices);
        probabilities.extend(list.probabilities);
        indptr.push(indices.len());
    }
    let certain = probabilities.iter().all(|&p| p == 1.0);
    Lists::new(device, &indptr, &indices, (!certain).then_some(&probabilities[..]))
}

/// Of the logits of all lists, `[lists, readers, longest]`, those of each reader.
fn of_rows(logits: &[f32], readers: usize, reads: &[&Read]) -> Vec<Vec<f64>> {
    let places = logits.len() / (readers * reads.len());
    let lengths = reads.iter().flat_map(|read| std::iter::repeat_n(read.len(), readers));
    let rows = logits.chunks_exact(places).zip(lengths);
    rows.map(|(row, len)| row[..len].iter().map(|&logit| f64::from(logit)).collect()).collect()
}
