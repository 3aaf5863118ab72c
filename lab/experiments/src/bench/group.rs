//! Pipelines that are measured together, round by round.

use std::time::{Duration, Instant};

use ndarray::{Array3, ArrayView3};
use rayon::prelude::*;
use vattention_core::{
    Attention, Backend, FallBack, Options, Output, Storage, TokenClass,
    engine::{PageSize, Placement, Turn},
};

use super::bandwidth::{ColdMemory, pool};
use super::heads::BenchHeads;
use super::memory::{CachePlan, huge_share, row_bytes};
use super::tally::{BenchTally, MeasuredGroup};
use crate::{Error, Result, Variant};

/// Tokens appended at a time.
const BLOCK: usize = 512;
/// Rounds before the clock is read.
const WARM_UP: usize = 2;
/// Rounds measured at least, however long they take.
const LEAST: usize = 5;

/// What a group is measured on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Set {
    pub(super) tokens: usize,
    pub(super) storage: Storage,
    pub(super) threads: usize,
    pub(super) placement: Placement,
    pub(super) page_size: PageSize,
    pub(super) fall_back: FallBack,
    pub(super) omit_error_bars: bool,
    /// Sequences that attend at once: so many layers that follow each other are the same one of as many sequences.
    pub(super) sequences: usize,
    pub(super) plan: CachePlan,
}

impl Set {
    /// Tokens of a layer. Sequences of a batch have different lengths, from about half of the tokens to all.
    fn tokens_of(&self, layer: usize) -> usize {
        let sequence = 1 + layer % self.sequences;
        (self.tokens * (self.sequences + sequence)).div_ceil(2 * self.sequences)
    }
}

/// Dense attention and others, all with the same tokens in the same number of layers.
pub(super) struct Group<'a> {
    backend: &'a dyn Backend,
    heads: &'a BenchHeads,
    set: Set,
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
        set: Set,
    ) -> Result<Self> {
        let shape = heads.shape();
        let options = |layer| Options {
            sequence: heads.sequence(layer),
            scale: heads.scale(),
            storage: set.storage,
            threads: Some(set.threads),
            placement: set.placement,
            page_size: set.page_size,
            fall_back: set.fall_back,
            omit_error_bars: set.omit_error_bars,
            timed: true,
            ..Options::default()
        };
        let runner = |variant: &'a Variant| {
            let start = |layer| {
                let number = heads.number(layer);
                let started = backend.start(&variant.pipeline, number, shape, &options(layer));
                started.map_err(|source| variant.refuse(number, source))
            };
            let layers = (0..set.plan.layers).map(start).collect::<Result<_>>()?;
            let bytes = row_bytes(&shape, set.storage);
            let tally = BenchTally::new(variant.pipeline.share, shape.group(), bytes);
            Ok(Runner { variant, layers, tally })
        };
        let runners = variants.iter().map(runner).collect::<Result<_>>()?;
        Ok(Self { backend, heads, set, runners })
    }

    /// Gives every pipeline the same tokens, and a prompt of one query, without which some
    /// selectors would take everything. `progress` is told the share that is done.
    pub(super) fn fill(&mut self, progress: &dyn Fn(f64)) -> Result<()> {
        let plan = self.set.plan;
        for layer in 0..plan.layers {
            let tokens = self.set.tokens_of(layer);
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

    /// Measures until `time` is over. `progress` is told the share that is done.
    pub(super) fn measure(
        mut self,
        memory: &ColdMemory,
        time: Duration,
        progress: &dyn Fn(f64),
    ) -> Result<MeasuredGroup<'a>> {
        let pool = pool(self.set.threads)?;
        for round in 0..WARM_UP {
            memory.read(&pool);
            self.round(round)?;
        }
        self.runners.iter_mut().for_each(|runner| runner.tally.forget());
        let huge_pages = huge_share();
        let (start, mut bandwidth) = (Instant::now(), Vec::new());
        while bandwidth.len() < LEAST || start.elapsed() < time {
            bandwidth.push(memory.read(&pool));
            self.round(WARM_UP + bandwidth.len())?;
            let of_rounds = bandwidth.len() as f64 / LEAST as f64;
            let of_time = start.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9);
            progress(of_rounds.min(of_time).min(1.0));
        }
        let tallies = self.runners.into_iter().map(|runner| (runner.variant, runner.tally));
        Ok(MeasuredGroup { bandwidth, huge_pages, tallies: tallies.collect() })
    }

    /// Lets every pipeline make a pass with the same queries, dense attention first, whose outputs the others' are
    /// compared with.
    fn round(&mut self, round: usize) -> Result<()> {
        let layers = 0..self.set.plan.layers;
        let queries: Vec<Array3<f32>> =
            layers.map(|layer| self.heads.queries(layer, round)).collect();
        let Some((dense, others)) = self.runners.split_first_mut() else { return Ok(()) };
        let exact = dense.pass(self.backend, &self.set, &queries)?;
        for runner in others {
            let outputs = runner.pass(self.backend, &self.set, &queries)?;
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

    /// Answers one query in each layer, of a batch of sequences at a time, and notes how long that took.
    fn pass(
        &mut self,
        backend: &dyn Backend,
        set: &Set,
        queries: &[Array3<f32>],
    ) -> Result<Vec<Output>> {
        let mut outputs: Vec<Output> = Vec::with_capacity(queries.len());
        let start = Instant::now();
        let batches = self.layers.chunks_mut(set.sequences).zip(queries.chunks(set.sequences));
        for (layers, queries) in batches {
            let first = outputs.len();
            let refuse = |source| self.variant.refuse(first, source);
            let views = queries.iter().map(|queries| queries.view());
            let answered = attend(backend, layers, views, set.threads).map_err(refuse)?;
            for output in answered {
                outputs.push(output.map_err(refuse)?);
            }
        }
        self.tally.add(start.elapsed(), &outputs);
        Ok(outputs)
    }
}

/// One step of a layer of each sequence of a batch; of a single one by itself.
fn attend<'q>(
    backend: &dyn Backend,
    layers: &mut [Box<dyn Attention>],
    queries: impl Iterator<Item = ArrayView3<'q, f32>>,
    threads: usize,
) -> vattention_core::Result<Vec<vattention_core::Result<Output>>> {
    let turns = layers.iter_mut().zip(queries).map(|(layer, queries)| Turn {
        attention: &mut **layer,
        queries,
        visible: None,
    });
    let turns: Vec<Turn<'_>> = turns.collect();
    if turns.len() == 1 {
        return Ok(turns.into_iter().map(Turn::attend).collect());
    }
    backend.attend_batch(turns, Some(threads))
}

impl Variant {
    fn refuse(&self, layer: usize, source: vattention_core::Error) -> Error {
        Error::Pipeline { file: self.pipeline.name.clone(), layer, source }
    }
}
