//! What is told of a bench.

use std::path::Path;

use serde::Serialize;

use super::group::Set;
use super::tally::{BenchTally, MeasuredGroup, PassResult};
use crate::metrics::ViolationCount;

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// Where.
    pub machine: Machine,
    /// The backend's name.
    pub backend: String,
    /// The trace that the heads are of, unless they are made up.
    pub trace: Option<String>,
    /// How fast memory was read in order.
    pub bandwidth_gb_s: Vec<Bandwidth>,
    /// In the order in which they were measured; each group begins with dense attention.
    pub rows: Vec<BenchRow>,
}

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name, where the system tells.
    pub cpu: Option<String>,
    /// Threads that run at once.
    pub cores: usize,
    /// The instruction set.
    pub arch: String,
}

/// The speed of reading memory in order.
#[derive(Clone, Debug, Serialize)]
pub struct Bandwidth {
    /// How many threads read.
    pub threads: usize,
    /// The median over all rounds with that many threads.
    pub gb_s: f64,
    #[serde(skip)]
    rounds: Vec<f64>,
}

/// How one pipeline fared. Times, speeds and their ratios are medians over rounds.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    /// The pipeline's name.
    pub pipeline: String,
    /// Tokens in the cache.
    pub tokens: usize,
    /// Threads.
    pub threads: usize,
    /// Sequences that attended at once, of different lengths, from about half of the tokens to all.
    pub sequences: usize,
    /// How rows are stored: f32, f16 or bf16.
    pub dtype: String,
    /// The group: rows of one group were measured together.
    pub group: usize,
    /// The density that the pipeline was made for.
    pub asked_density: Option<f64>,
    /// The share of the visible tokens that a KV head's query heads read together; the mean.
    pub density: f64,
    /// Tokens drawn for a query head; the mean.
    pub sampled: f64,
    /// Milliseconds of one decode step of one layer of one sequence.
    pub ms: f64,
    /// Keys and values read, over the time: of a shared list once for its KV head, of separate
    /// lists once for each query head.
    pub gb_s: f64,
    /// That over the sequential read of the same round.
    pub of_bandwidth: f64,
    /// The time of dense attention in the same round over this one's.
    pub speedup_over_dense: f64,
    /// The share of the time that selectors took, if the backend tells.
    pub select_share: Option<f64>,
    /// The share that drawing and judging the sample took.
    pub sample_share: Option<f64>,
    /// The share that reading keys and values took.
    pub attend_share: Option<f64>,
    /// The share of the process's memory that was in huge pages, if the system tells.
    pub huge_pages: Option<f64>,
    /// Nanoseconds to append a token to the cache and the indexes of a KV head, with one thread; the mean.
    pub append_ns: f64,
    /// The share of rows for which everything was read because that is faster.
    pub fell_back: f64,
    /// The mean relative error of the output, to dense attention's.
    pub error: f64,
    /// Violations of the promise; `None` without a promise.
    pub violations: Option<ViolationCount>,
    /// Layers, each with its own cache.
    pub layers: usize,
    /// Rounds.
    pub rounds: usize,
}

impl BenchReport {
    pub(super) fn new(backend: &str, trace: Option<&Path>) -> Self {
        Self {
            machine: Machine::this(),
            backend: backend.into(),
            trace: trace.map(|path| path.display().to_string()),
            bandwidth_gb_s: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, group: usize, set: &Set, measured: MeasuredGroup<'_>) {
        let MeasuredGroup { bandwidth, huge_pages, tallies } = measured;
        let Some((_, dense)) = tallies.first() else { return };
        for (variant, tally) in &tallies {
            let mut row = BenchRow::new(group, set, tally, dense, &bandwidth);
            let promise = variant.pipeline.promise();
            let violations = tally.violations().zip(promise);
            row.violations = violations.map(|(counts, promise)| counts.count(promise.scope));
            row.pipeline.clone_from(&variant.pipeline.name);
            row.asked_density = variant.asked;
            row.huge_pages = huge_pages;
            self.rows.push(row);
        }
        self.add_bandwidth(set.threads, bandwidth);
    }

    fn add_bandwidth(&mut self, threads: usize, rounds: Vec<f64>) {
        let found = self.bandwidth_gb_s.iter().position(|one| one.threads == threads);
        let place = found.unwrap_or(self.bandwidth_gb_s.len());
        if found.is_none() {
            self.bandwidth_gb_s.push(Bandwidth { threads, gb_s: 0.0, rounds: Vec::new() });
        }
        let one = &mut self.bandwidth_gb_s[place];
        one.rounds.extend(rounds);
        one.gb_s = median(one.rounds.iter().copied());
    }
}

impl BenchRow {
    fn new(
        group: usize,
        set: &Set,
        tally: &BenchTally,
        dense: &BenchTally,
        bandwidth: &[f64],
    ) -> Self {
        let of = |value: fn(&PassResult) -> f64| tally.passes().iter().map(value);
        let dense = dense.passes().iter().map(|pass| pass.seconds);
        let shares = tally.shares();
        Self {
            pipeline: String::new(),
            tokens: set.tokens,
            threads: set.threads,
            sequences: set.sequences,
            dtype: set.storage.name().into(),
            group,
            asked_density: None,
            density: tally.density(),
            sampled: tally.sampled(),
            ms: 1e3 * median(of(|pass| pass.seconds)),
            gb_s: median(of(|pass| pass.gb_s)),
            of_bandwidth: median(of(|pass| pass.gb_s).zip(bandwidth).map(|(own, all)| own / all)),
            speedup_over_dense: median(dense.zip(of(|pass| pass.seconds)).map(|(a, b)| a / b)),
            select_share: shares.map(|[select, _, _]| select),
            sample_share: shares.map(|[_, sample, _]| sample),
            attend_share: shares.map(|[_, _, attend]| attend),
            huge_pages: None,
            append_ns: tally.append_ns(),
            fell_back: tally.fell_back(),
            error: tally.error(),
            violations: None,
            layers: set.plan.layers,
            rounds: tally.passes().len(),
        }
    }
}

impl Machine {
    /// The processor's name, or words for one that has none.
    pub fn name(&self) -> &str {
        self.cpu.as_deref().unwrap_or("a processor without a name")
    }

    /// The machine that this runs on.
    pub fn this() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { cpu, cores, arch: std::env::consts::ARCH.into() }
    }
}

/// The middle of the numbers, or the mean of the middle two.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    if numbers.len().is_multiple_of(2) && middle > 0 {
        f64::midpoint(numbers[middle - 1], numbers[middle])
    } else {
        numbers.get(middle).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 8.0].into_iter()), 3.0);
        assert_eq!(median([5.0].into_iter()), 5.0);
    }
}
