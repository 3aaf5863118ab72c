//! Which benchmark is asked.

use std::path::PathBuf;

use vattention_tasks::Benchmark;

use crate::fail::Failure;

#[derive(Debug, clap::Args)]
pub(super) struct Published {
    /// Ask a published benchmark instead of RULER's synthetic tasks: longbench, ruler (its own files),
    /// babilong, loogle, infinitebench, math500, aime2024 or aime2025; see docs/evaluation.md.
    #[arg(long, value_name = "NAME", requires = "files", conflicts_with_all = ["tasks", "haystack", "squad", "hotpot", "vocabulary"])]
    benchmark: Option<String>,
    /// The folder with the benchmark's files: JSON lines or parquet.
    #[arg(long, value_name = "DIR", requires = "benchmark")]
    files: Option<PathBuf>,
    /// Datasets of the benchmark between commas; by default all whose files are in the folder.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "benchmark")]
    datasets: Vec<String>,
}

impl Published {
    pub(super) fn is_asked(&self) -> bool {
        self.benchmark.is_some()
    }

    /// Reads the benchmark that is asked for, if one is.
    pub(super) fn open(&self) -> Result<Option<Benchmark>, Failure> {
        match (&self.benchmark, &self.files) {
            (Some(name), Some(dir)) => Ok(Some(Benchmark::open(name, dir, &self.datasets)?)),
            _ => Ok(None),
        }
    }
}
