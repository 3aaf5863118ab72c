//! The fast backend: reads each row once for all query heads that share its token list, at the
//! speed of memory.
//!
//! | module        | contents                                                            |
//! |---------------|---------------------------------------------------------------------|
//! | `simd`        | vectors of sixteen elements: AVX-512, AVX2 or plain Rust            |
//! | `kernel`      | attention over a range or a list of rows; products for statistics   |
//! | `query_heads` | the query heads that read one token list, and their sums            |
//! | `sample`      | a drawn sample                                                      |
//! | `sample_rows` | memory for samples, which steps reuse                               |
//! | `moments`     | statistics of a uniform sample                                      |
//! | `weighted`    | a sample whose tokens have weights `1 / π`                          |
//! | `accumulator` | sums and statistics for the sampler in core                         |
//! | `pace`        | choice of dense or sparse steps by measured times                   |
//!
//! Rows are summed in f32 over pieces of a fixed length, and the pieces' sums are merged in f64 in
//! list order. So results do not depend on the number of threads.

#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
mod kernel;
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
mod simd;

mod accumulator;
mod moments;
mod pace;
mod query_heads;
mod sample;
mod sample_rows;
#[cfg(test)]
mod tests;
mod weighted;

use std::sync::Arc;
use std::time::Instant;

use vattention_core::{
    Attention, Backend, FallBack, Options, Output, PipelineConfig, Result, Shape, SoftmaxForm,
    engine::{BatchEntry, Timings},
    pipeline::{Choice, Reading},
};

pub(crate) use self::simd::CHUNK;
pub use self::simd::Level;

use self::accumulator::{CpuAccumulator, dense_from};
use self::kernel::{AnyRows, KvRows};
use self::pace::{Pace, StepMode};
use self::query_heads::QueryHeads;
use self::sample_rows::SampledElement;
use crate::executor::{Executor, HeadInput, HeadOutput, RowSums};
use crate::layer::{Layer, build_pipelines};
use crate::workers::{Pools, Workers};

/// Computes KV heads in parallel on `options.threads` threads; by default, on rayon's global pool.
/// Sequences of one `Cpu` with the same number of threads share a pool.
#[derive(Debug, Default)]
pub struct Cpu {
    pools: Pools,
    level: Level,
}

impl Cpu {
    /// Creates a backend that uses the best instructions of this machine, but none above `level`.
    pub fn limited_to(level: Level) -> Self {
        Self { level: level.min(Level::best()), ..Self::default() }
    }

    /// Computes one step of one KV head on the calling thread, over a KV cache of the caller.
    ///
    /// Rows are read in place, each once for all query heads that share a token list. The cost is
    /// that of the pipeline, of reading the rows, and of a bounds check for each page of rows.
    ///
    /// `head.pipeline` must have indexed all tokens. No times are measured: [`FallBack::ByClock`]
    /// acts like `ByCount`.
    ///
    /// # Errors
    /// If `head.step` has fewer keys or values than visible tokens, keys and values of different
    /// number types, rows whose dimension is not a multiple of 32 and that have no
    /// [padding](vattention_core::Tokens::padded), queries of another shape, or an invalid
    /// [form of the softmax](SoftmaxForm::check). Also if a selector lacks a prompt or feedback
    /// ([`Pipeline::check_observed`](vattention_core::Pipeline::check_observed)).
    pub fn execute_step(head: &HeadInput<'_>, fall_back: FallBack) -> Result<HeadOutput> {
        head.check()?;
        head.pipeline.check_observed(head.step.step)?;
        execute(head, ExecutionOptions::new(fall_back, Level::best()), StepMode::Sparse)
    }

    /// Creates the attention of one layer of one sequence like [`Backend::start`], but with these
    /// workers instead of [`Options::threads`].
    ///
    /// # Errors
    /// Returns the errors of [`Backend::start`].
    pub fn start_on(
        &self,
        workers: Workers,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        // A dense step would read rows that are freed.
        let fall_back = if options.free_evicted { FallBack::Never } else { options.fall_back };
        let by_clock = fall_back == FallBack::ByClock && !pipeline.is_dense();
        let paces = by_clock.then(|| vec![Pace::default(); shape.kv_heads]);
        let execution = ExecutionOptions::new(fall_back, self.level);
        let executor = CpuExecutor { execution, paces };
        let pipelines = build_pipelines(pipeline, layer, shape, options)?;
        Ok(Box::new(Layer::new(pipelines, options, workers, executor)?))
    }

    /// Returns the workers for [`Options::threads`], which sequences of this backend share.
    ///
    /// # Errors
    /// Returns an error if the threads cannot be started.
    pub fn workers(&self, threads: Option<usize>) -> Result<Workers> {
        self.pools.workers(self.name(), threads)
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn summary(&self) -> &'static str {
        "AVX-512, AVX2 or plain Rust; KV heads and ranges of tokens in parallel"
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        self.start_on(self.workers(options.threads)?, pipeline, layer, shape, options)
    }

    /// Computes sequences in parallel, and KV heads within them.
    fn attend_batch(
        &self,
        batch: Vec<BatchEntry<'_>>,
        threads: Option<usize>,
    ) -> Result<Vec<Result<Output>>> {
        Ok(self.workers(threads)?.map(batch, BatchEntry::attend))
    }

    fn keep_awake(&self, threads: Option<usize>, steps: &mut (dyn FnMut() + Send)) -> Result<()> {
        self.workers(threads)?.keep_awake(steps);
        Ok(())
    }
}

/// Computes KV heads in parallel.
#[derive(Clone, Debug)]
struct CpuExecutor {
    execution: ExecutionOptions,
    /// Measured times of each KV head, if they decide between dense and sparse steps.
    paces: Option<Vec<Pace>>,
}

/// Options of the computation of a KV head.
#[derive(Clone, Copy, Debug)]
struct ExecutionOptions {
    /// Read the chosen tokens even where a dense step would be faster.
    never_dense: bool,
    /// Instructions of the kernels.
    level: Level,
}

impl ExecutionOptions {
    fn new(fall_back: FallBack, level: Level) -> Self {
        Self { never_dense: fall_back == FallBack::Never, level }
    }
}

impl Executor for CpuExecutor {
    const FALLIBLE: bool = false;

    fn execute(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        let execution = self.execution;
        let Some(paces) = &mut self.paces else {
            let outputs = workers.map(heads, |head| execute(&head, execution, StepMode::Sparse));
            return outputs.into_iter().collect();
        };
        let heads = heads.into_iter().zip(paces).collect();
        let outputs = workers.map(heads, |(head, pace)| {
            let (visible, begin) = (head.step.visible, Instant::now());
            let mode = pace.choose_mode(visible);
            let output = execute(&head, execution, mode);
            pace.record(mode, visible, begin.elapsed());
            output
        });
        outputs.into_iter().collect()
    }

    fn fork(&self, _len: usize) -> Result<Self> {
        Ok(self.clone())
    }
}

fn execute(
    head: &HeadInput<'_>,
    execution: ExecutionOptions,
    mode: StepMode,
) -> Result<HeadOutput> {
    Ok(match AnyRows::new(head.step.keys, head.step.values)? {
        AnyRows::F32(rows) => execute_over(head, execution, mode, &rows),
        AnyRows::F16(rows) => execute_over(head, execution, mode, &rows),
        AnyRows::Bf16(rows) => execute_over(head, execution, mode, &rows),
        AnyRows::Q8(rows) => execute_over(head, execution, mode, &rows),
    })
}

fn execute_over<E: SampledElement>(
    head: &HeadInput<'_>,
    execution: ExecutionOptions,
    mode: StepMode,
    rows: &KvRows<'_, E>,
) -> HeadOutput {
    let HeadInput { pipeline, step, .. } = head;
    if mode == StepMode::Dense {
        return fall_back(head, execution, rows, Timings::default());
    }
    let begin = Instant::now();
    let choice = pipeline.choose(step);
    let mut timings = Timings { select: begin.elapsed(), ..Timings::default() };

    let Shape { head_dim, value_dim, .. } = step.site.shape;
    let group = step.site.shape.group();
    if !execution.never_dense && lists_are_too_long(&choice, step.visible) {
        return fall_back(head, execution, rows, timings);
    }
    let heads_per_list = group / choice.lists();
    let feedback = pipeline.needs_feedback();
    let mut sums = Vec::with_capacity(group);
    let mut reads = Vec::with_capacity(choice.lists());
    let mut fell_back = Vec::new();
    for (list, queries) in step.queries.chunks_exact(heads_per_list * head_dim).enumerate() {
        let begin = Instant::now();
        let members = list * heads_per_list..(list + 1) * heads_per_list;
        let heads = QueryHeads::new(rows, queries, head_dim, value_dim)
            .with_level(execution.level)
            .with_threads(step.threads)
            .with_softmax(step.form.for_heads(members));
        let mut accumulator =
            CpuAccumulator::new(&heads, step.visible, execution.never_dense, feedback);
        let read = pipeline.sample(step, &choice, list, &mut accumulator);
        let attend = if read.fell_back {
            fell_back.extend((0..heads_per_list).map(|head| list * heads_per_list + head));
            accumulator.attend()
        } else {
            let (list_sums, attend) = accumulator.finish(&read);
            sums.extend(list_sums);
            attend
        };
        timings.attend += attend;
        timings.sample += begin.elapsed().saturating_sub(attend);
        reads.push(read);
    }
    if !fell_back.is_empty() {
        let begin = Instant::now();
        let dense_sums = read_all(head, execution, rows, fell_back.iter().copied());
        // Members ascend, so the sums of all smaller members are in place before each insertion.
        for (member, dense) in fell_back.into_iter().zip(dense_sums) {
            sums.insert(member, dense);
        }
        timings.attend += begin.elapsed();
    }
    HeadOutput::new(head, sums, &Reading::new(reads, group), timings)
}

/// Reads all visible tokens instead of the chosen ones. `timings` are those of the step so far.
fn fall_back<E: SampledElement>(
    head: &HeadInput<'_>,
    execution: ExecutionOptions,
    rows: &KvRows<'_, E>,
    mut timings: Timings,
) -> HeadOutput {
    let (begin, group) = (Instant::now(), head.step.site.shape.group());
    let sums = read_all(head, execution, rows, 0..group);
    timings.attend = begin.elapsed();
    let reading = Reading::new(vec![head.pipeline.fall_back(&head.step)], group);
    HeadOutput::new(head, sums, &reading, timings)
}

/// Sums over all visible tokens for some members of the group. Each row is read once.
fn read_all<E: SampledElement>(
    head: &HeadInput<'_>,
    execution: ExecutionOptions,
    rows: &KvRows<'_, E>,
    members: impl Iterator<Item = usize> + Clone,
) -> Vec<RowSums> {
    let HeadInput { pipeline, step, .. } = head;
    let Shape { head_dim, value_dim, .. } = step.site.shape;
    let member_queries = members.clone().flat_map(|member| step.row(member).query());
    let queries: Vec<f32> = member_queries.copied().collect();
    let sinks: Option<Vec<f32>> = members.map(|member| step.form.sink_logit(member)).collect();
    let heads = QueryHeads::new(rows, &queries, head_dim, value_dim)
        .with_level(execution.level)
        .with_threads(step.threads)
        .with_softmax(SoftmaxForm { sink_logits: sinks.as_deref(), ..step.form });
    let feedback = pipeline.needs_feedback();
    let accumulator = CpuAccumulator::new(&heads, step.visible, execution.never_dense, feedback);
    accumulator.finish(&pipeline.fall_back(step)).0
}

/// Returns true if reading all tokens once is faster than reading several token lists.
fn lists_are_too_long(choice: &Choice, visible: usize) -> bool {
    choice.lists() > 1 && choice.picked(visible) >= dense_from(visible)
}
