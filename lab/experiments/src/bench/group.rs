//! Pipelines that are measured together, round by round.

use std::time::{Duration, Instant};

use ndarray::{Array3, ArrayView3};
use rayon::prelude::*;
use vattention_core::{
    Attention, Backend, FallBack, Options, Output, Storage, TokenClass,
    engine::{BatchEntry, PageSize, Placement},
};

use super::bandwidth::{ColdMemory, start_pool};
use super::heads::BenchHeads;
use super::memory::{CachePlan, huge_share, row_bytes};
use super::tally::{BenchTally, MeasuredGroup};
use crate::{Error, Result, Variant};

/// Number of tokens appended by one call.
const BLOCK: usize = 512;
/// Number of rounds before measurement begins.
const WARM_UP: usize = 2;
/// Least number of measured rounds.
const LEAST_ROUNDS: usize = 5;

/// One combination of tokens, storage and threads, with the settings of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct BenchCase {
    pub(super) tokens: usize,
    pub(super) storage: Storage,
    pub(super) threads: usize,
    pub(super) placement: Placement,
    pub(super) page_size: PageSize,
    pub(super) fall_back: FallBack,
    pub(super) omit_error_bars: bool,
    /// Number of sequences in a batch. A layer of the batch is that number of successive layers,
    /// one for each sequence.
    pub(super) sequences: usize,
    pub(super) plan: CachePlan,
}

impl BenchCase {
    /// Number of tokens of a layer. Sequences of a batch have different lengths, from about half of
    /// the tokens to all.
    fn tokens_in(&self, layer: usize) -> usize {
        let sequence = 1 + layer % self.sequences;
        (self.tokens * (self.sequences + sequence)).div_ceil(2 * self.sequences)
    }
}

/// Dense attention and other pipelines, all with the same tokens in the same number of layers.
pub(super) struct Group<'a> {
    backend: &'a dyn Backend,
    heads: &'a BenchHeads,
    case: BenchCase,
    runners: Vec<Runner<'a>>,
}

/// One pipeline with its layers.
struct Runner<'a> {
    variant: &'a Variant,
    layers: Vec<Box<dyn Attention>>,
    tally: BenchTally,
}

impl<'a> Group<'a> {
    pub(super) fn start(
        variants: &'a [Variant],
        backend: &'a dyn Backend,
        heads: &'a BenchHeads,
        case: BenchCase,
    ) -> Result<Self> {
        let shape = heads.shape();
        let options = |layer| Options {
            sequence: heads.sequence(layer),
            scale: heads.scale(),
            soft_cap: heads.form(layer).soft_cap,
            sink_logits: heads.form(layer).sink_logits.map(Into::into),
            storage: case.storage,
            threads: Some(case.threads),
            placement: case.placement,
            page_size: case.page_size,
            fall_back: case.fall_back,
            omit_error_bars: case.omit_error_bars,
            timed: true,
            ..Options::default()
        };
        let runner = |variant: &'a Variant| {
            let start = |layer| {
                let number = heads.number(layer);
                let started = backend.start(&variant.pipeline, number, shape, &options(layer));
                started.map_err(|source| variant.refuse(number, source))
            };
            let layers = (0..case.plan.layers).map(start).collect::<Result<_>>()?;
            let bytes = row_bytes(&shape, case.storage);
            let tally = BenchTally::new(variant.pipeline.share, shape.group(), bytes);
            Ok(Runner { variant, layers, tally })
        };
        let runners = variants.iter().map(runner).collect::<Result<_>>()?;
        Ok(Self { backend, heads, case, runners })
    }

    /// Appends the same tokens to every pipeline, and lets it observe a prompt's queries, without
    /// which some selectors read everything. `progress` is called with the finished share.
    pub(super) fn fill(&mut self, progress: &dyn Fn(f64)) -> Result<()> {
        let plan = self.case.plan;
        for layer in 0..plan.layers {
            let tokens = self.case.tokens_in(layer);
            for first in (0..tokens).step_by(BLOCK) {
                let count = BLOCK.min(tokens - first);
                let keys = self.heads.keys(layer, first, count);
                let values = self.heads.values(layer, first, count);
                let classes = self.heads.classes(layer, first, count);
                self.runners.par_iter_mut().try_for_each(|runner| {
                    runner.append(layer, &keys, &values, classes.as_deref())
                })?;
                let done = layer as f64 + (first + count) as f64 / tokens as f64;
                progress(done / plan.layers as f64);
            }
            let prompt = self.heads.prompt(layer, tokens);
            self.runners.par_iter_mut().try_for_each(|runner| runner.observe(layer, &prompt))?;
        }
        Ok(())
    }

    /// Measures rounds until `time` is over. Their number is odd, so that medians are of one round.
    /// `progress` is called with the finished share.
    pub(super) fn measure(
        mut self,
        memory: &ColdMemory,
        time: Duration,
        progress: &dyn Fn(f64),
    ) -> Result<MeasuredGroup<'a>> {
        let pool = start_pool(self.case.threads)?;
        for round in 0..WARM_UP {
            memory.read(&pool);
            self.run_round(round)?;
        }
        self.runners.iter_mut().for_each(|runner| runner.tally.discard_passes());
        let huge_pages = huge_share();
        let (start, mut bandwidth) = (Instant::now(), Vec::new());
        let is_enough = |rounds: usize| rounds >= LEAST_ROUNDS && !rounds.is_multiple_of(2);
        while !is_enough(bandwidth.len()) || start.elapsed() < time {
            bandwidth.push(memory.read(&pool));
            self.run_round(WARM_UP + bandwidth.len())?;
            let rounds_share = bandwidth.len() as f64 / LEAST_ROUNDS as f64;
            let time_share = start.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9);
            progress(rounds_share.min(time_share).min(1.0));
        }
        let tallies = self.runners.into_iter().map(|runner| (runner.variant, runner.tally));
        Ok(MeasuredGroup { bandwidth, huge_pages, tallies: tallies.collect() })
    }

    /// Runs a pass of every pipeline with the same queries. Dense attention runs first; its outputs
    /// are the reference for the others.
    fn run_round(&mut self, round: usize) -> Result<()> {
        let layers = 0..self.case.plan.layers;
        let queries: Vec<Array3<f32>> =
            layers.map(|layer| self.heads.queries(layer, round)).collect();
        let Some((dense, others)) = self.runners.split_first_mut() else { return Ok(()) };
        let exact = dense.run_pass(self.backend, &self.case, &queries)?;
        for runner in others {
            let outputs = runner.run_pass(self.backend, &self.case, &queries)?;
            runner.tally.compare(&outputs, &exact, runner.variant.pipeline.promise().as_ref());
        }
        Ok(())
    }
}

impl Runner<'_> {
    fn append(
        &mut self,
        layer: usize,
        keys: &Array3<f32>,
        values: &Array3<f32>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        let start = Instant::now();
        let appended =
            self.layers[layer].append_rows(keys.view().into(), values.view().into(), classes);
        let (heads, new, _) = keys.dim();
        self.tally.add_append(start.elapsed(), heads * new);
        appended.map_err(|source| self.variant.refuse(layer, source))
    }

    fn observe(&mut self, layer: usize, queries: &Array3<f32>) -> Result<()> {
        let observed = self.layers[layer].observe(queries.view());
        observed.map_err(|source| self.variant.refuse(layer, source))
    }

    /// Computes attention for one query in each layer, and records the time. As in the decode step
    /// of a model, threads do not sleep between layers.
    fn run_pass(
        &mut self,
        backend: &dyn Backend,
        case: &BenchCase,
        queries: &[Array3<f32>],
    ) -> Result<Vec<Output>> {
        let start = Instant::now();
        let mut outputs = Ok(Vec::new());
        let mut run_layers = || outputs = self.run_layers(backend, case, queries);
        let ran = backend.keep_awake(Some(case.threads), &mut run_layers);
        ran.map_err(|source| self.variant.refuse(0, source))?;
        let outputs = outputs?;
        self.tally.add(start.elapsed(), &outputs);
        Ok(outputs)
    }

    /// Computes attention for one query in each layer, batch by batch.
    fn run_layers(
        &mut self,
        backend: &dyn Backend,
        case: &BenchCase,
        queries: &[Array3<f32>],
    ) -> Result<Vec<Output>> {
        let mut outputs: Vec<Output> = Vec::with_capacity(queries.len());
        let batches = self.layers.chunks_mut(case.sequences).zip(queries.chunks(case.sequences));
        for (layers, queries) in batches {
            let first = outputs.len();
            let refuse = |source| self.variant.refuse(first, source);
            let views = queries.iter().map(|queries| queries.view());
            let results = attend(backend, layers, views, case.threads).map_err(refuse)?;
            for output in results {
                outputs.push(output.map_err(refuse)?);
            }
        }
        Ok(outputs)
    }
}

/// Runs one step of a layer for each sequence of a batch. A single sequence does not use the batch
/// path.
fn attend<'q>(
    backend: &dyn Backend,
    layers: &mut [Box<dyn Attention>],
    queries: impl Iterator<Item = ArrayView3<'q, f32>>,
    threads: usize,
) -> vattention_core::Result<Vec<vattention_core::Result<Output>>> {
    let turns = layers.iter_mut().zip(queries).map(|(layer, queries)| BatchEntry {
        attention: &mut **layer,
        queries,
        visible: None,
    });
    let turns: Vec<BatchEntry<'_>> = turns.collect();
    if turns.len() == 1 {
        return Ok(turns.into_iter().map(BatchEntry::attend).collect());
    }
    backend.attend_batch(turns, Some(threads))
}

impl Variant {
    fn refuse(&self, layer: usize, source: vattention_core::Error) -> Error {
        Error::Pipeline { file: self.pipeline.name.clone(), layer, source }
    }
}
