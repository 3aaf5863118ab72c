//! Report of the benchmark.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::group::BenchCase;
use super::tally::{BenchTally, MeasuredGroup, PassResult};
use crate::metrics::ViolationCount;

/// Results of the benchmark.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BenchReport {
    /// Machine.
    pub machine: Machine,
    /// Name of the backend.
    pub backend: String,
    /// Trace that the heads are from; `None` for synthetic heads.
    pub trace: Option<String>,
    /// Speed of reading memory in order, by number of threads.
    pub bandwidth_gb_s: Vec<Bandwidth>,
    /// Results of pipelines, in the order of measurement; each group begins with dense attention.
    pub rows: Vec<BenchRow>,
}

/// Description of a machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Machine {
    /// Name of the processor, if the system reports it.
    pub cpu: Option<String>,
    /// Number of threads that the machine runs in parallel.
    pub cores: usize,
    /// Architecture, such as `x86_64`.
    pub arch: String,
}

/// Speed of reading memory in order.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Bandwidth {
    /// Number of threads.
    pub threads: usize,
    /// Median speed over all rounds with that number of threads, in GB/s.
    pub gb_s: f64,
    #[serde(skip)]
    rounds: Vec<f64>,
}

/// Results of one pipeline. Times, speeds and their ratios are medians over rounds.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BenchRow {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Number of tokens in the cache.
    pub tokens: usize,
    /// Number of threads.
    pub threads: usize,
    /// Number of sequences in a batch, whose lengths are from about half of the tokens to all.
    pub sequences: usize,
    /// Storage type of rows: f32, f16, bf16 or q8.
    pub dtype: String,
    /// Number of the group: pipelines of one group were measured together.
    pub group: usize,
    /// Density that the pipeline was set to; `None` if it has its own settings.
    pub asked_density: Option<f64>,
    /// Share of the visible tokens that a KV head's query heads read together, mean over rows.
    pub density: f64,
    /// Number of sampled tokens of a query head, mean over rows.
    pub sampled: f64,
    /// Milliseconds of one decode step of one layer of one sequence.
    pub ms: f64,
    /// Speed of reading keys and values, in GB/s. A shared token list counts once for its KV head,
    /// separate lists count once for each query head.
    pub gb_s: f64,
    /// Ratio of `gb_s` to the speed of the sequential read in the same round.
    pub of_bandwidth: f64,
    /// Ratio of the time of dense attention in the same round to the time of this pipeline.
    pub speedup_over_dense: f64,
    /// Share of the time that selectors took, if the backend reports timings.
    pub select_share: Option<f64>,
    /// Share of the time that drawing and checking the sample took.
    pub sample_share: Option<f64>,
    /// Share of the time that reading keys and values took.
    pub attend_share: Option<f64>,
    /// Share of the process's memory that was in huge pages, if the system reports it.
    pub huge_pages: Option<f64>,
    /// Nanoseconds for appending a token to the cache and the indexes of a KV head with one thread,
    /// mean over tokens.
    pub append_ns: f64,
    /// Share of rows that read all tokens because that is faster.
    pub fell_back: f64,
    /// Relative error of the output against dense attention, mean over rows.
    pub error: f64,
    /// Violations of the promise; `None` without a promise.
    pub violations: Option<ViolationCount>,
    /// Number of layers, each with its own cache.
    pub layers: usize,
    /// Number of rounds.
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

    pub(super) fn add(&mut self, group: usize, case: &BenchCase, measured: MeasuredGroup<'_>) {
        let MeasuredGroup { bandwidth, huge_pages, tallies } = measured;
        let Some((_, dense)) = tallies.first() else { return };
        for (variant, tally) in &tallies {
            let mut row = BenchRow::new(group, case, tally, dense, &bandwidth);
            let promise = variant.pipeline.promise();
            let violations = tally.violations().zip(promise);
            row.violations = violations.map(|(counts, promise)| counts.count(promise.scope));
            row.pipeline.clone_from(&variant.pipeline.name);
            row.asked_density = variant.asked;
            row.huge_pages = huge_pages;
            self.rows.push(row);
        }
        self.add_bandwidth(case.threads, bandwidth);
    }

    fn add_bandwidth(&mut self, threads: usize, rounds: Vec<f64>) {
        let found = self.bandwidth_gb_s.iter().position(|speed| speed.threads == threads);
        let place = found.unwrap_or(self.bandwidth_gb_s.len());
        if found.is_none() {
            self.bandwidth_gb_s.push(Bandwidth { threads, gb_s: 0.0, rounds: Vec::new() });
        }
        let speed = &mut self.bandwidth_gb_s[place];
        speed.rounds.extend(rounds);
        speed.gb_s = median(speed.rounds.iter().copied());
    }
}

impl BenchRow {
    fn new(
        group: usize,
        case: &BenchCase,
        tally: &BenchTally,
        dense: &BenchTally,
        bandwidth: &[f64],
    ) -> Self {
        let values = |value: fn(&PassResult) -> f64| tally.passes().iter().map(value);
        let dense = dense.passes().iter().map(|pass| pass.seconds);
        let shares = tally.shares();
        Self {
            pipeline: String::new(),
            tokens: case.tokens,
            threads: case.threads,
            sequences: case.sequences,
            dtype: case.storage.name().into(),
            group,
            asked_density: None,
            density: tally.density(),
            sampled: tally.sampled(),
            ms: 1e3 * median(values(|pass| pass.seconds)),
            gb_s: median(values(|pass| pass.gb_s)),
            of_bandwidth: median(
                values(|pass| pass.gb_s).zip(bandwidth).map(|(own, all)| own / all),
            ),
            speedup_over_dense: median(dense.zip(values(|pass| pass.seconds)).map(|(a, b)| a / b)),
            select_share: shares.map(|[select, _, _]| select),
            sample_share: shares.map(|[_, sample, _]| sample),
            attend_share: shares.map(|[_, _, attend]| attend),
            huge_pages: None,
            append_ns: tally.append_ns(),
            fell_back: tally.fell_back(),
            error: tally.error(),
            violations: None,
            layers: case.plan.layers,
            rounds: tally.passes().len(),
        }
    }
}

impl Machine {
    /// Name of the processor, or a substitute if it has no name.
    pub fn name(&self) -> &str {
        self.cpu.as_deref().unwrap_or("a processor without a name")
    }

    /// Describes the machine that runs this process.
    pub fn this() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { cpu, cores, arch: std::env::consts::ARCH.into() }
    }
}

/// Median of numbers: the middle one, or the mean of the middle two; 0 without any.
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
    fn the_median_of_an_even_number_is_a_mean() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 8.0].into_iter()), 3.0);
        assert_eq!(median([5.0].into_iter()), 5.0);
    }
}
