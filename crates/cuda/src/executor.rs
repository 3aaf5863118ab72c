//! Execution of a step: by a routine on the device, or, if a part of the pipeline has no kernels,
//! by selection on the host and attention on the device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use vattention_backends::{Executor, HeadInput, HeadOutput, Indexing, RowSums, Workers};
use vattention_core::{
    Options, Pipeline, Result, RowsView, Shape, Share,
    engine::Timings,
    pipeline::{Read, Reading},
    sample::Order,
    step::Softmax,
};

use crate::Device;
use crate::index::HeadIndex;
use crate::launch::{Array, AttendLists, CombineSums, Lists, Logits, RowLayout};
use crate::plan::Plan;
use crate::results::StepResults;
use crate::routine::{HeadInputs, Routine, RoutineKind, Routines};
use crate::rows::DeviceRows;

/// Base-2 logarithm of the rows of a page.
const LOG2_PAGE: u32 = 8;

/// One layer of one sequence on a device.
#[derive(Debug)]
pub(crate) struct GpuExecutor<D: Device> {
    device: D,
    shape: Shape,
    rows: DeviceRows<D>,
    /// Attention kernels by the number of query heads that share a token list.
    attend: BTreeMap<usize, AttendLists<D>>,
    combine: CombineSums<D>,
    /// Operations of each step, if every part of the pipeline has kernels.
    plan: Option<Arc<Plan>>,
    routines: Routines<D>,
    /// The routine used last.
    routine: Option<Arc<Routine<D>>>,
    /// Indexes by KV head; empty without a plan.
    indexes: Vec<HeadIndex<D>>,
}

impl<D: Device> GpuExecutor<D> {
    /// Compiles the kernels that every pipeline needs, and plans the steps of KV heads with these
    /// pipelines. There are no rows yet.
    pub(crate) fn new(
        device: D,
        routines: Routines<D>,
        pipelines: &[Pipeline],
        options: &Options,
    ) -> Result<Self> {
        let shape = pipelines[0].site().shape;
        let layout = RowLayout::new(options.storage, shape.head_dim, shape.value_dim, LOG2_PAGE)?;
        let own_lists = (pipelines[0].config().share == Share::Head).then_some(1);
        let heads_per_list = std::iter::once(shape.group()).chain(own_lists);
        let attend = heads_per_list
            .map(|heads| Ok((heads, AttendLists::new(&device, layout, heads)?)))
            .collect::<Result<_>>()?;
        let combine = CombineSums::new(&device)?;
        let rows = DeviceRows::new(device.clone(), layout, shape.kv_heads, options.placement)?;
        let plan = Plan::new(pipelines, layout).map(Arc::new);
        let index = |plan, kv_head| HeadIndex::new(device.clone(), layout, plan, kv_head);
        let indexes =
            plan.iter().flat_map(|plan| (0..shape.kv_heads).map(|head| index(plan, head)));
        let indexes = indexes.collect::<Result<_>>()?;
        Ok(Self { device, shape, rows, attend, combine, plan, routines, routine: None, indexes })
    }

    /// Attention sums of each query head over its token list. One launch attends for all KV heads,
    /// and another one merges the sums.
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
        let heads_per_list = self.shape.query_heads / reads.len();
        let logits = heads
            .iter()
            .any(|head| head.pipeline.needs_feedback())
            .then(|| Logits::new(&self.device, reads.len(), heads_per_list, lists.longest()))
            .transpose()?;
        let records = self.attend[&heads_per_list].run(&rows, &lists, &queries, logits.as_ref())?;
        let sums = self.combine.run(&records, &lists)?.read()?;
        let logits = match &logits {
            Some(logits) => logits_by_head(&logits.read()?, heads_per_list, &reads),
            None => vec![Vec::new(); self.shape.query_heads],
        };
        let row = |(sums, logits): (Softmax, Vec<f64>)| RowSums { sums, logits };
        Ok(sums.into_iter().zip(logits).map(row).collect())
    }

    /// Runs a step of the plan on the device.
    fn run_routine(&mut self, plan: &Plan, heads: &[HeadInput<'_>]) -> Result<Vec<HeadOutput>> {
        let begin = Instant::now();
        let routine = self.routine_for(plan, heads[0].step.keys.len())?;
        let kind = routine.kind();
        let mut inputs = Vec::with_capacity(heads.len());
        for (i, HeadInput { pipeline, step, .. }) in heads.iter().enumerate() {
            let indexes = self.indexes[i].prepare(kind.capacity, step.visible)?;
            let lists = if plan.sample.is_some() { kind.lists() / heads.len() } else { 0 };
            let order = |list| Order::new(step.visible, &pipeline.sample_stream(step, list));
            let orders = (0..lists).map(|list| order(list).parameters()).collect();
            let (longest, table) =
                (pipeline.max_norm_v(step.visible), self.rows.heads()[i].table());
            inputs.push(HeadInputs { plan, step, longest, orders, table, indexes });
        }
        let (found, tokens) = routine.run(&inputs, heads.iter().any(|head| head.listed))?;
        for (index, head) in self.indexes.iter_mut().zip(heads) {
            index.advance(head.step.visible);
        }
        let results = StepResults { kind, plan, found, tokens };
        let mut steps: Vec<HeadOutput> =
            heads.iter().enumerate().map(|(i, head)| results.head_output(i, head)).collect();
        // The device computes all KV heads in parallel, so the time is reported once.
        steps[0].timings.attend = begin.elapsed();
        Ok(steps)
    }

    /// The routine for steps over `tokens` tokens.
    fn routine_for(&mut self, plan: &Plan, tokens: usize) -> Result<Arc<Routine<D>>> {
        let capacity = RoutineKind::capacity_for(tokens);
        if let Some(routine) = &self.routine
            && routine.kind().capacity == capacity
        {
            return Ok(routine.clone());
        }
        let kind = RoutineKind::new(plan, self.shape, self.rows.layout(), capacity);
        let routine = self.routines.get(&self.device, &kind)?;
        self.routine = Some(routine.clone());
        Ok(routine)
    }

    /// Attends to the tokens that the pipelines chose on the host.
    fn read_chosen(&self, heads: &[HeadInput<'_>], workers: &Workers) -> Result<Vec<HeadOutput>> {
        let mut chosen = workers.map(heads.iter().collect(), choose);
        let begin = Instant::now();
        let readings: Vec<&Reading> = chosen.iter().map(|(reading, _)| reading).collect();
        let mut rows = self.attend(heads, &readings)?.into_iter();
        // The device computes all KV heads in parallel, so the time is reported once.
        chosen[0].1.attend = begin.elapsed();
        let step = |(head, (reading, timings)): (&HeadInput<'_>, (Reading, Timings))| {
            let sums = rows.by_ref().take(self.shape.group()).collect();
            HeadOutput::new(head, sums, &reading, timings)
        };
        Ok(heads.iter().zip(chosen).map(step).collect())
    }
}

impl<D: Device> Executor for GpuExecutor<D> {
    const FALLIBLE: bool = true;

    fn indexing(&self) -> Indexing {
        if self.plan.is_some() { Indexing::Never } else { Indexing::Eager }
    }

    fn plans_at_steps(&self) -> bool {
        self.plan.is_none()
    }

    fn append(&mut self, first: usize, keys: RowsView<'_>, values: RowsView<'_>) -> Result<()> {
        self.rows.write(first, keys, values)
    }

    fn execute(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        match self.plan.clone() {
            Some(plan) => self.run_routine(&plan, &heads),
            None => self.read_chosen(&heads, workers),
        }
    }

    fn index_bytes(&self) -> usize {
        self.indexes.iter().map(HeadIndex::bytes).sum()
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
            plan: self.plan.clone(),
            routines: self.routines.clone(),
            routine: self.routine.clone(),
            indexes: self.indexes.iter().map(HeadIndex::new_empty).collect(),
            ..*self
        })
    }
}

/// Selects and samples on the host, with the reference implementation.
fn choose(head: &HeadInput<'_>) -> (Reading, Timings) {
    let begin = Instant::now();
    let choice = head.pipeline.choose(&head.step);
    let select = begin.elapsed();
    let reading = head.pipeline.complete(&head.step, &choice);
    let sample = begin.elapsed().saturating_sub(select);
    (reading, Timings { select, sample, ..Timings::default() })
}

/// Copies the tokens that are read, with their probabilities, to the device.
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

/// Splits logits `[lists, heads_per_list, longest]` by query head, and cuts each row to the length
/// of its list.
fn logits_by_head(logits: &[f32], heads_per_list: usize, reads: &[&Read]) -> Vec<Vec<f64>> {
    let places = logits.len() / (heads_per_list * reads.len());
    let lengths = reads.iter().flat_map(|read| std::iter::repeat_n(read.len(), heads_per_list));
    let rows = logits.chunks_exact(places).zip(lengths);
    rows.map(|(row, len)| row[..len].iter().map(|&logit| f64::from(logit)).collect()).collect()
}
