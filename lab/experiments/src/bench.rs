//! Decode speed against dense attention, with cold caches.
//!
//! Every pipeline has enough layers for a gigabyte of keys and values. A *pass* is one decode step
//! in each layer, as for one token of a model with that many layers. When a pass reaches a layer,
//! the processor's caches no longer hold the layer's rows.
//!
//! In every *round*, the machine first sums a gigabyte of memory in order, then dense attention and
//! all pipelines make one pass each. Results are medians over rounds. Ratios are computed in each
//! round before their median is taken: a machine that slows down for a while slows down both sides
//! of a ratio.

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
use group::{BenchCase, Group};
use memory::CachePlan;

pub use density::{at_density, decides_itself, with_sizes};
pub(crate) use density::{refusal, scale_sizes};
pub use heads::{BenchHeads, TracedHeads};
pub use memory::{available_memory, row_bytes};
pub use report::{Bandwidth, BenchReport, BenchRow, Machine};

/// Settings of the benchmark.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Keys, values and queries of the layers.
    pub heads: BenchHeads,
    /// Numbers of tokens in a cache, each at least 1.
    pub tokens: Vec<usize>,
    /// Storage types of the rows in caches.
    pub storages: Vec<Storage>,
    /// Numbers of threads, each at least 1.
    pub threads: Vec<usize>,
    /// Memory in which a device stores rows.
    pub placement: Placement,
    /// Size of the memory pages of the host's rows.
    pub page_size: PageSize,
    /// Condition for reading all tokens instead of a selection.
    pub fall_back: FallBack,
    /// True to omit the error bars of samples of a fixed size.
    pub omit_error_bars: bool,
    /// Number of sequences in a batch, at least 1.
    pub sequences: usize,
    /// Time to measure each group of pipelines, after warming up; at least five rounds are
    /// measured, and an odd number.
    pub time: Duration,
    /// Bytes of keys and values in all layers of a pipeline, which has 2 to 4096 layers. The memory
    /// that is read in order has the same size.
    pub cold_bytes: usize,
}

impl Bench {
    /// Measures dense attention and the variants for all combinations of tokens, storages and
    /// threads. `progress` is called with the finished part of the work and the whole work.
    ///
    /// For each combination, all caches are filled with the same numbers. If they do not fit into
    /// 60 % of the available memory, the variants are measured in groups, each with its own dense
    /// attention and its own sequential read.
    ///
    /// # Errors
    /// If the shape is invalid, a pipeline cannot run on it, or there is too little memory.
    pub fn run(
        &self,
        variants: &[Variant],
        backend: &dyn Backend,
        progress: &dyn Fn(usize, usize),
    ) -> Result<BenchReport> {
        let cases = self.cases(variants.len())?;
        let groups: Vec<(BenchCase, Vec<Variant>)> =
            cases.into_iter().flat_map(|case| split_into_groups(case, variants)).collect();
        let memory = ColdMemory::new(self.cold_bytes)?;
        let mut report = BenchReport::new(backend.name(), self.heads.path());
        for (i, (case, variants)) in groups.iter().enumerate() {
            let part =
                |share: f64| progress(100 * i + (100.0 * share) as usize, 100 * groups.len());
            let mut group = Group::start(variants, backend, &self.heads, *case)?;
            group.fill(&|share| part(0.5 * share))?;
            let measured = group.measure(&memory, self.time, &|share| part(0.5 + 0.5 * share))?;
            report.add(i, case, measured);
        }
        Ok(report)
    }

    /// Returns the number of layers of each pipeline if `pipelines` pipelines are measured; the
    /// largest, if it differs between combinations.
    ///
    /// # Errors
    /// If the shape is invalid, or there is too little memory.
    pub fn most_layers(&self, pipelines: usize) -> Result<usize> {
        let layers = self.cases(pipelines)?.iter().map(|case| case.plan.layers).max();
        Ok(layers.unwrap_or_default())
    }

    /// Returns every combination of tokens, storage and threads, checked against the available
    /// memory.
    fn cases(&self, pipelines: usize) -> Result<Vec<BenchCase>> {
        let shape = self.heads.shape();
        shape
            .check()
            .map_err(|error| Error::Setting { field: "shape", reason: error.to_string() })?;
        let allowance = memory::allowance();
        let mut cases = Vec::new();
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
                cases.extend(self.threads.iter().map(|&threads| BenchCase {
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
        Ok(cases)
    }
}

/// Splits variants into groups that fit into memory together, each led by dense attention.
fn split_into_groups(case: BenchCase, variants: &[Variant]) -> Vec<(BenchCase, Vec<Variant>)> {
    let dense = PipelineConfig { name: "dense".into(), ..PipelineConfig::default() };
    let dense = Variant::untuned(Arc::new(dense));
    let with_dense =
        |others: &[Variant]| (case, std::iter::once(&dense).chain(others).cloned().collect());
    if variants.is_empty() {
        return vec![with_dense(&[])];
    }
    variants.chunks(case.plan.together.max(1)).map(with_dense).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_is_led_by_dense_attention() {
        let variant = |name: &str| {
            let pipeline = PipelineConfig { name: name.into(), ..PipelineConfig::default() };
            Variant::untuned(Arc::new(pipeline))
        };
        let names = |together: usize, variants: &[Variant]| -> Vec<String> {
            let plan = CachePlan { layers: 2, together };
            let case = BenchCase {
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
            let name = |variant: &Variant| variant.pipeline.name.clone();
            let joined = |group: &[Variant]| group.iter().map(name).collect::<Vec<_>>().join(" ");
            split_into_groups(case, variants).iter().map(|(_, group)| joined(group)).collect()
        };
        let three = ["a", "b", "c"].map(variant);
        assert_eq!(names(3, &three), ["dense a b c"]);
        assert_eq!(names(2, &three), ["dense a b", "dense c"]);
        assert_eq!(names(0, &[]), ["dense"]);
    }
}
