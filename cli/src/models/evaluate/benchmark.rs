//! Options of published benchmarks.

use std::path::PathBuf;

use vattention_tasks::Benchmark;

use crate::fail::Failure;

#[derive(Debug, clap::Args)]
pub(super) struct BenchmarkArgs {
    /// Evaluate a published benchmark instead of RULER's synthetic tasks: longbench, longbench-v2,
    /// ruler (its own files), babilong, loogle, infinitebench, zero-scrolls, math500, aime2024,
    /// aime2025 or aime2026; see docs/evaluation.md.
    #[arg(long, value_name = "NAME", requires = "files")]
    #[arg(conflicts_with_all = ["tasks", "haystack", "squad", "hotpot", "vocabulary"])]
    benchmark: Option<String>,
    /// Folder with the benchmark's files: JSON lines or parquet.
    #[arg(long, value_name = "DIR", requires = "benchmark")]
    files: Option<PathBuf>,
    /// Datasets of the benchmark, separated by commas; by default, all with files in the folder.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "benchmark")]
    datasets: Vec<String>,
}

impl BenchmarkArgs {
    pub(super) fn is_given(&self) -> bool {
        self.benchmark.is_some()
    }

    /// Opens the benchmark, if the option is given.
    pub(super) fn open(&self) -> Result<Option<Benchmark>, Failure> {
        match (&self.benchmark, &self.files) {
            (Some(name), Some(dir)) => Ok(Some(Benchmark::open(name, dir, &self.datasets)?)),
            _ => Ok(None),
        }
    }
}
