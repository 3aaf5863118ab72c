//! A step: by a routine on the device, or, where the pipeline has a part without kernels, the host
//! chooses and the device reads the chosen tokens.

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
use crate::answered::Answered;
use crate::index::Index;
use crate::launch::{Array, Attend, CombineSums, Lists, Logits, RowLayout};
use crate::plan::Plan;
use crate::routine::{HeadInputs, Routine, RoutineKind, Routines};
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
    /// The operations of its steps, if every part of the pipeline has kernels.
    plan: Option<Arc<Plan>>,
    routines: Routines<D>,
    /// The one that was used last.
    routine: Option<Arc<Routine<D>>>,
    /// Those of each KV head; none without a plan.
    indexes: Vec<Index<D>>,
}

impl<D: Device> GpuExecutor<D> {
    /// No rows, the kernels compiled that every pipeline needs, and the plan for KV heads with these
    /// pipelines.
    pub(crate) fn new(
        device: D,
        routines: Routines<D>,
        pipelines: &[Pipeline],
        options: &Options,
    ) -> Result<Self> {
        let shape = pipelines[0].site().shape;
        let layout = RowLayout::new(options.storage, shape.head_dim, shape.value_dim, LOG2_PAGE)?;
        let own_lists = (pipelines[0].config().share == Share::Head).then_some(1);
        let readers = std::iter::once(shape.group()).chain(own_lists);
        let attend = readers
            .map(|readers| Ok((readers, Attend::new(&device, layout, readers)?)))
            .collect::<Result<_>>()?;
        let combine = CombineSums::new(&device)?;
        let rows = Rows::new(device.clone(), layout, shape.kv_heads, options.placement)?;
        let plan = Plan::new(pipelines, layout).map(Arc::new);
        let index = |plan, kv_head| Index::new(device.clone(), layout, plan, kv_head);
        let indexes =
            plan.iter().flat_map(|plan| (0..shape.kv_heads).map(|head| index(plan, head)));
        let indexes = indexes.collect::<Result<_>>()?;
        Ok(Self { device, shape, rows, attend, combine, plan, routines, routine: None, indexes })
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

    /// Runs a step of the plan: the device does everything.
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
        let answered = Answered { kind, plan, found, tokens };
        let mut steps: Vec<HeadOutput> =
            heads.iter().enumerate().map(|(i, head)| answered.head(i, head)).collect();
        // The device answers all KV heads at once: the time is reported once.
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

    /// Attends to the tokens that the pipelines choose on the host.
    fn read_chosen(&self, heads: &[HeadInput<'_>], workers: &Workers) -> Result<Vec<HeadOutput>> {
        let mut chosen = workers.map(heads.iter().collect(), choose);
        let begin = Instant::now();
        let readings: Vec<&Reading> = chosen.iter().map(|(reading, _)| reading).collect();
        let mut rows = self.attend(heads, &readings)?.into_iter();
        // The device answers all KV heads at once: the time is reported once.
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

    fn append(&mut self, first: usize, keys: RowsView<'_>, values: RowsView<'_>) -> Result<()> {
        self.rows.write(first, keys, values)
    }

    fn answer(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        match self.plan.clone() {
            Some(plan) => self.run_routine(&plan, &heads),
            None => self.read_chosen(&heads, workers),
        }
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
            plan: self.plan.clone(),
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
