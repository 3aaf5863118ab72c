//! For use: reads each row once for all query heads that read its list, as fast as memory allows.
//!
//! | file        | what                                                                             |
//! |-------------|----------------------------------------------------------------------------------|
//! | `simd`      | sixteen elements at a time, on AVX-512, AVX2 or in plain Rust                     |
//! | `kernel`    | attention over a range or a list of rows, wherever they lie; what the statistics need of a sample |
//! | `readers`   | the query heads that read one list, and their sums                               |
//! | `sample`    | a drawn sample, and the memory it is kept in                                     |
//! | `moments`   | its statistics                                                                   |
//! | `accumulator` | what the sampler in core asks for, and the way to the output                   |
//! | `weighed`   | a sample whose tokens weigh `1 / π`                                              |
//! | `pace`      | whether reading everything is faster, by the clock                               |
//!
//! Rows are summed in f32 over pieces of a fixed length and merged in f64, in list order, so
//! results do not depend on the number of threads.

#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
mod kernel;
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
mod simd;

mod accumulator;
mod moments;
mod pace;
mod readers;
mod sample;
mod stored;
#[cfg(test)]
mod tests;
mod weighed;

use std::sync::Arc;
use std::time::Instant;

use vattention_core::{
    Attention, Backend, FallBack, Options, Output, PipelineConfig, Result, Shape,
    engine::{Timings, Turn},
    pipeline::{Choice, Reading},
};

pub(crate) use self::simd::CHUNK;
pub use self::simd::Level;

use self::accumulator::{CpuAccumulator, dense_from};
use self::kernel::{AnyRows, Rows};
use self::pace::{Pace, Way};
use self::readers::Readers;
use self::stored::Stored;
use crate::executor::{Executor, HeadInput, HeadOutput, RowSums};
use crate::layer::{Layer, build_pipelines};
use crate::workers::{Pools, Workers};

/// KV heads in parallel on `options.threads` threads; by default, on rayon's global pool. All
/// sequences that ask one `Cpu` for the same number of threads share them.
#[derive(Debug, Default)]
pub struct Cpu {
    pools: Pools,
    level: Level,
}

impl Cpu {
    /// Backend that uses instructions up to `level`, or the best of this machine if that is less.
    pub fn limited_to(level: Level) -> Self {
        Self { level: level.min(Level::best()), ..Self::default() }
    }

    /// Answers one step of one KV head over rows that somebody else keeps, on the calling thread, as the backend does over
    /// its own: rows are read where they lie, each once for all query heads of its list. Cost: that of the
    /// pipeline and of the rows that it reads, and a check of where each page of rows ends.
    ///
    /// `head.pipeline` must have been shown all tokens. Time is the caller's to keep: [`FallBack::ByClock`] is
    /// `ByCount` here.
    ///
    /// # Errors
    /// If `head.step` has fewer keys or values than are visible, keys and values of different
    /// number types, rows whose dimension is no multiple of 32 without
    /// [padding](vattention_core::Tokens::padded), or queries of another shape. Also if a selector
    /// lacks a prompt or feedback
    /// ([`Pipeline::check_taught`](vattention_core::Pipeline::check_taught)).
    pub fn answer(head: &HeadInput<'_>, fall_back: FallBack) -> Result<HeadOutput> {
        head.check()?;
        head.pipeline.check_taught(head.step.step)?;
        answer(head, Answering::new(fall_back, false, Level::best()), Way::Chosen)
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
        let workers = self.pools.workers(self.name(), options.threads)?;
        let split = workers.threads() > 1;
        // What is freed cannot be read.
        let fall_back = if options.free_evicted { FallBack::Never } else { options.fall_back };
        let by_clock = fall_back == FallBack::ByClock && !pipeline.is_dense();
        let paces = by_clock.then(|| vec![Pace::default(); shape.kv_heads]);
        let how = Answering::new(fall_back, split, self.level);
        let machine = CpuExecutor { how, paces };
        let pipelines = build_pipelines(pipeline, layer, shape, options)?;
        Ok(Box::new(Layer::new(pipelines, options, workers, machine)?))
    }

    /// Sequences in parallel, and KV heads within them.
    fn attend_batch(
        &self,
        batch: Vec<Turn<'_>>,
        threads: Option<usize>,
    ) -> Result<Vec<Result<Output>>> {
        Ok(self.pools.workers(self.name(), threads)?.map(batch, Turn::attend))
    }
}

/// Answers KV heads in parallel.
#[derive(Clone, Debug)]
struct CpuExecutor {
    how: Answering,
    /// Of each KV head, if the clock decides what is read.
    paces: Option<Vec<Pace>>,
}

/// How KV heads are answered.
#[derive(Clone, Copy, Debug)]
struct Answering {
    /// Read what the pipeline chose even where reading everything would be faster.
    literal: bool,
    /// Share the rows of one KV head out among threads.
    split: bool,
    /// Instructions of the kernels.
    level: Level,
}

impl Answering {
    fn new(fall_back: FallBack, split: bool, level: Level) -> Self {
        Self { literal: fall_back == FallBack::Never, split, level }
    }
}

impl Executor for CpuExecutor {
    const FALLIBLE: bool = false;

    fn answer(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        let how = self.how;
        let Some(paces) = &mut self.paces else {
            return workers
                .map(heads, |head| answer(&head, how, Way::Chosen))
                .into_iter()
                .collect();
        };
        let heads = heads.into_iter().zip(paces).collect();
        let answers = workers.map(heads, |(head, pace)| {
            let (way, visible, begin) =
                (pace.way(head.step.visible), head.step.visible, Instant::now());
            let answer = answer(&head, how, way);
            pace.took(way, visible, begin.elapsed());
            answer
        });
        answers.into_iter().collect()
    }

    fn fork(&self, _len: usize) -> Result<Self> {
        Ok(self.clone())
    }
}

fn answer(head: &HeadInput<'_>, how: Answering, way: Way) -> Result<HeadOutput> {
    Ok(match AnyRows::new(head.step.keys, head.step.values)? {
        AnyRows::F32(rows) => answer_over(head, how, way, rows),
        AnyRows::F16(rows) => answer_over(head, how, way, rows),
        AnyRows::Bf16(rows) => answer_over(head, how, way, rows),
    })
}

fn answer_over<E: Stored>(
    head: &HeadInput<'_>,
    how: Answering,
    way: Way,
    rows: Rows<'_, E>,
) -> HeadOutput {
    let HeadInput { pipeline, step, .. } = head;
    if way == Way::Dense {
        return fall_back(head, how, rows, Timings::default());
    }
    let begin = Instant::now();
    let choice = pipeline.choose(step);
    let mut timings = Timings { select: begin.elapsed(), ..Timings::default() };

    let Shape { head_dim, value_dim, .. } = step.site.shape;
    let group = step.site.shape.group();
    if !how.literal && lists_are_too_long(&choice, step.visible) {
        return fall_back(head, how, rows, timings);
    }
    let readers_of_list = group / choice.lists();
    let feedback = pipeline.needs_feedback();
    let mut answers = Vec::with_capacity(group);
    let mut reads = Vec::with_capacity(choice.lists());
    let mut fell_back = Vec::new();
    for (list, queries) in step.queries.chunks_exact(readers_of_list * head_dim).enumerate() {
        let begin = Instant::now();
        let readers =
            Readers::new(rows, queries, head_dim, value_dim, how.split).with_level(how.level);
        let mut accumulator = CpuAccumulator::new(&readers, step.visible, how.literal, feedback);
        let read = pipeline.sample(step, &choice, list, &mut accumulator);
        let attend = if read.fell_back {
            fell_back.extend((0..readers_of_list).map(|reader| list * readers_of_list + reader));
            accumulator.attend()
        } else {
            let (sums, attend) = accumulator.finish(&read);
            answers.extend(sums);
            attend
        };
        timings.attend += attend;
        timings.sample += begin.elapsed().saturating_sub(attend);
        reads.push(read);
    }
    if !fell_back.is_empty() {
        let begin = Instant::now();
        let sums = everything(head, how, rows, fell_back.iter().copied());
        // Ascending: when one is inserted, all before it are there.
        fell_back.into_iter().zip(sums).for_each(|(member, sums)| answers.insert(member, sums));
        timings.attend += begin.elapsed();
    }
    HeadOutput::new(head, answers, &Reading::new(reads, group), timings)
}

/// Reads everything in place of what the pipeline chose, which took so long so far.
fn fall_back<E: Stored>(
    head: &HeadInput<'_>,
    how: Answering,
    rows: Rows<'_, E>,
    mut timings: Timings,
) -> HeadOutput {
    let (begin, group) = (Instant::now(), head.step.site.shape.group());
    let sums = everything(head, how, rows, 0..group);
    timings.attend = begin.elapsed();
    let reading = Reading::new(vec![head.pipeline.fall_back(&head.step)], group);
    HeadOutput::new(head, sums, &reading, timings)
}

/// What some members of the group make of all visible tokens, which are read once for all of them.
fn everything<E: Stored>(
    head: &HeadInput<'_>,
    how: Answering,
    rows: Rows<'_, E>,
    members: impl Iterator<Item = usize>,
) -> Vec<RowSums> {
    let HeadInput { pipeline, step, .. } = head;
    let Shape { head_dim, value_dim, .. } = step.site.shape;
    let queries: Vec<f32> = members.flat_map(|member| step.row(member).query()).copied().collect();
    let readers =
        Readers::new(rows, &queries, head_dim, value_dim, how.split).with_level(how.level);
    let feedback = pipeline.needs_feedback();
    let accumulator = CpuAccumulator::new(&readers, step.visible, how.literal, feedback);
    accumulator.finish(&pipeline.fall_back(step)).0
}

/// Whether reading everything is faster than all of several lists together.
fn lists_are_too_long(choice: &Choice, visible: usize) -> bool {
    choice.lists() > 1 && choice.picked(visible) >= dense_from(visible)
}
