//! For use: reads each row once for all query heads that read its list, as fast as memory allows.
//!
//! | file        | what                                                                             |
//! |-------------|----------------------------------------------------------------------------------|
//! | `simd`      | sixteen numbers at a time, on AVX-512, AVX2 or in plain Rust                     |
//! | `kernel`    | attention over a range or a list of rows; what the statistics need of a sample   |
//! | `readers`   | the query heads that read one list, and their sums                               |
//! | `sample`    | a drawn sample, and the memory it is kept in                                     |
//! | `look`      | its statistics                                                                   |
//! | `tally`     | what the sampler in core asks for, and the way to the output                     |
//!
//! Rows are summed in f32 over pieces of a fixed length and merged in f64, in list order, so
//! results do not depend on the number of threads.

#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
mod kernel;
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
mod simd;

mod look;
mod readers;
mod sample;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use vattention_core::{
    Attention, Backend, Choice, Error, Options, Output, PipelineConfig, Reading, Result, Shape,
    Timings, Turn,
};

pub(crate) use self::simd::CHUNK;

use self::readers::Readers;
use self::sample::Stored;
use self::tally::{CpuTally, dense_from};
use crate::cache::{Chunks, RowsView};
use crate::layer::{HeadStep, Layer, Situation, Workers};

/// KV heads in parallel on `options.threads` threads; by default, on rayon's global pool. All
/// sequences that ask one `Cpu` for the same number of threads share them.
#[derive(Debug, Default)]
pub struct Cpu {
    pools: Mutex<BTreeMap<usize, Arc<ThreadPool>>>,
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
        let workers = self.workers(options.threads)?;
        Ok(Box::new(Layer::new(pipeline, layer, shape, options, workers, answer)?))
    }

    /// Sequences in parallel, and KV heads within them.
    fn attend_batch(
        &self,
        batch: Vec<Turn<'_>>,
        threads: Option<usize>,
    ) -> Result<Vec<Result<Output>>> {
        let workers = self.workers(threads)?;
        if matches!(workers, Workers::Serial) {
            return Ok(batch.into_iter().map(Turn::attend).collect());
        }
        let all = || batch.into_par_iter().map(Turn::attend).collect();
        Ok(if let Workers::Own(pool) = workers { pool.install(all) } else { all() })
    }
}

impl Cpu {
    /// One thread is the caller's: waking another would take longer than a short step.
    fn workers(&self, threads: Option<usize>) -> Result<Workers> {
        match threads {
            None => Ok(Workers::Global),
            Some(1) => Ok(Workers::Serial),
            Some(threads) => self.pool(threads),
        }
    }

    fn pool(&self, threads: usize) -> Result<Workers> {
        let refuse = |reason: String| Error::Backend { backend: "cpu".into(), reason };
        if threads == 0 {
            return Err(refuse("threads: expected at least 1, got 0".into()));
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&threads) {
            return Ok(Workers::Own(pool.clone()));
        }
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = Arc::new(pool.map_err(|error| refuse(error.to_string()))?);
        pools.insert(threads, pool.clone());
        Ok(Workers::Own(pool))
    }
}

fn answer(situation: &Situation<'_>) -> HeadStep {
    match situation.cache.rows() {
        RowsView::F32(rows) => answer_over(situation, rows),
        RowsView::F16(rows) => answer_over(situation, rows),
        RowsView::Bf16(rows) => answer_over(situation, rows),
    }
}

fn answer_over<E: Stored>(situation: &Situation<'_>, rows: Chunks<'_, E>) -> HeadStep {
    let Situation { pipeline, step, how, .. } = *situation;
    let begin = Instant::now();
    let choice = pipeline.choose(step);
    let mut timings = Timings { select: begin.elapsed(), ..Timings::default() };

    let Shape { head_dim, value_dim, .. } = step.site.shape;
    let lists = lists(&choice, step.visible, how.literal);
    let per_list = step.queries.len() / lists;
    let feedback = pipeline.needs_feedback();
    let mut answers = Vec::with_capacity(step.site.shape.group());
    let mut reads = Vec::with_capacity(lists);
    for (list, queries) in step.queries.chunks_exact(per_list).enumerate() {
        let begin = Instant::now();
        let readers = Readers::new(rows, queries, head_dim, value_dim, how.split);
        let mut tally = CpuTally::new(&readers, step.visible, how.literal, feedback);
        let read = if lists < choice.lists() {
            pipeline.fall_back(step)
        } else {
            pipeline.sample(step, &choice, list, &mut tally)
        };
        let (sums, attend) = tally.finish(&read);
        timings.attend += attend;
        timings.sample += begin.elapsed().saturating_sub(attend);
        answers.extend(sums);
        reads.push(read);
    }
    let reading = Reading::new(reads, step.site.shape.group());
    HeadStep { rows: answers, reading, timings }
}

/// How many lists are read: those of the choice, or one of everything if that is faster than all
/// of them together.
fn lists(choice: &Choice, visible: usize, literal: bool) -> usize {
    let together: usize = choice.lens().map(|len| len.unwrap_or(visible)).sum();
    let too_long = choice.lists() > 1 && together >= dense_from(visible, literal);
    if too_long { 1 } else { choice.lists() }
}
