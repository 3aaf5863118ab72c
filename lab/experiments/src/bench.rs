//! Decode speed against dense attention, with cold caches.
//!
//! Every pipeline has as many layers as make a gigabyte of keys and values, and a *pass* is one
//! decode step in each of them: one token of a model with that many layers, whose rows nobody has
//! read for as long. In every *round*, the machine first sums a gigabyte of memory in order, then
//! dense attention and all pipelines make one pass each. What is told are medians over rounds, of
//! ratios too, which are taken in each round: a machine that slows down for a while slows
//! down both sides of a ratio.

mod bandwidth;
mod density;
mod group;
mod heads;
mod memory;
mod numbers;
mod report;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use vattention_core::{
    Backend, FallBack, PipelineConfig, Storage,
    engine::{PageSize, Placement},
};

use crate::{Error, Result, Variant};
use bandwidth::ColdMemory;
use group::{Group, Set};
use memory::CachePlan;

pub(crate) use density::{BY_LAYER, refusal};
pub use density::{at_density, decides_itself, sized};
pub use heads::{BenchHeads, TracedHeads};
pub use memory::{available_memory, row_bytes};
pub use report::{Bandwidth, BenchReport, BenchRow, Machine};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The layers.
    pub heads: BenchHeads,
    /// Tokens in a cache, each at least 1.
    pub tokens: Vec<usize>,
    /// How caches store rows.
    pub storages: Vec<Storage>,
    /// Threads, each at least 1.
    pub threads: Vec<usize>,
    /// Where a device keeps rows.
    pub placement: Placement,
    /// What pages of memory the host's rows are in.
    pub page_size: PageSize,
    /// When pipelines read everything instead.
    pub fall_back: FallBack,
    /// Whether samples of a given size get no error bars.
    pub omit_error_bars: bool,
    /// Sequences that attend at once, at least 1.
    pub sequences: usize,
    /// How long to measure each set of pipelines, after warming up; five rounds at least.
    pub time: Duration,
    /// Bytes of keys and values in all layers of a pipeline, of which there are 2 to 4096; and of
    /// the memory that is read in order.
    pub cold_bytes: usize,
}

impl Bench {
    /// Measures dense attention and the variants for all tokens, storages and threads.
    /// `progress` is called with the parts done and of all.
    ///
    /// For each of them, all caches are filled with the same numbers and kept. Where 60 % of the
    /// available memory does not hold them, the variants go in groups, each with its own dense
    /// attention and its own sequential read.
    ///
    /// # Errors
    /// A shape that cannot be, a pipeline that cannot run on it, or too little memory.
    pub fn run(
        &self,
        variants: &[Variant],
        backend: &dyn Backend,
        progress: &dyn Fn(usize, usize),
    ) -> Result<BenchReport> {
        let sets = self.sets(variants.len())?;
        let groups: Vec<(Set, Vec<Variant>)> =
            sets.into_iter().flat_map(|set| grouped(set, variants)).collect();
        let memory = ColdMemory::new(self.cold_bytes)?;
        let mut report = BenchReport::new(backend.name(), self.heads.path());
        for (i, (set, variants)) in groups.iter().enumerate() {
            let part =
                |share: f64| progress(100 * i + (100.0 * share) as usize, 100 * groups.len());
            let mut group = Group::start(variants, backend, &self.heads, *set)?;
            group.fill(&|share| part(0.5 * share))?;
            let measured = group.measure(&memory, self.time, &|share| part(0.5 + 0.5 * share))?;
            report.add(i, set, measured);
        }
        Ok(report)
    }

    /// The most layers that each of `pipelines` pipelines can have.
    ///
    /// # Errors
    /// A shape that cannot be, or too little memory.
    pub fn most_layers(&self, pipelines: usize) -> Result<usize> {
        let layers = self.sets(pipelines)?.iter().map(|set| set.plan.layers).max();
        Ok(layers.unwrap_or_default())
    }

    /// Every combination of tokens, storage and threads, checked against the memory.
    fn sets(&self, pipelines: usize) -> Result<Vec<Set>> {
        let shape = self.heads.shape();
        shape
            .check()
            .map_err(|error| Error::Setting { field: "shape", reason: error.to_string() })?;
        let allowance = memory::allowance();
        let mut sets = Vec::new();
        for &tokens in &self.tokens {
            for &storage in &self.storages {
                let plan = CachePlan::new(
                    &shape,
                    storage,
                    tokens,
                    self.sequences,
                    pipelines,
                    self.cold_bytes,
                    allowance,
                )?;
                sets.extend(self.threads.iter().map(|&threads| Set {
                    tokens,
                    storage,
                    threads,
                    placement: self.placement,
                    page_size: self.page_size,
                    fall_back: self.fall_back,
                    omit_error_bars: self.omit_error_bars,
                    sequences: self.sequences,
                    plan,
                }));
            }
        }
        Ok(sets)
    }
}

/// Groups of variants that fit into memory together, each led by dense attention.
fn grouped(set: Set, variants: &[Variant]) -> Vec<(Set, Vec<Variant>)> {
    let dense = PipelineConfig { name: "dense".into(), ..PipelineConfig::default() };
    let dense = Variant::as_it_stands(Arc::new(dense));
    let led = |others: &[Variant]| (set, std::iter::once(&dense).chain(others).cloned().collect());
    if variants.is_empty() {
        return vec![led(&[])];
    }
    variants.chunks(set.plan.together.max(1)).map(led).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_is_led_by_dense_attention() {
        let variant = |name: &str| {
            let pipeline = PipelineConfig { name: name.into(), ..PipelineConfig::default() };
            Variant::as_it_stands(Arc::new(pipeline))
        };
        let names = |together: usize, variants: &[Variant]| -> Vec<String> {
            let plan = CachePlan { layers: 2, together };
            let set = Set {
                tokens: 1,
                storage: Storage::F32,
                threads: 1,
                placement: Placement::Device,
                page_size: PageSize::Huge,
                fall_back: FallBack::ByCount,
                omit_error_bars: false,
                sequences: 1,
                plan,
            };
            let name = |one: &Variant| one.pipeline.name.clone();
            let joined = |group: &[Variant]| group.iter().map(name).collect::<Vec<_>>().join(" ");
            grouped(set, variants).iter().map(|(_, group)| joined(group)).collect()
        };
        let three = ["a", "b", "c"].map(variant);
        assert_eq!(names(3, &three), ["dense a b c"]);
        assert_eq!(names(2, &three), ["dense a b", "dense c"]);
        assert_eq!(names(0, &[]), ["dense"]);
    }
}
