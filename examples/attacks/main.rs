//! Attacks on the promise of pipelines, by heads that are built or bred to break it.
//!
//!     cargo run --release --example attacks -- table PIPELINE... [--trials N] [--every N]
//!     cargo run --release --example attacks -- search PIPELINE... [--generations N] [--trials N]
//!
//! `table` runs `verify` on the populations of `vattention_testkit::adversarial::sweep()`, or on
//! every N-th of them; N must be coprime to 6, because six shapes alternate. `search` climbs from a
//! head of each kind: first over the parameters of the kind, then over keys, values and queries.
//! The pipeline's seed is new in each generation, so that a head cannot adapt to the draws;
//! `verify` gives the verdict, with seeds that no generation used.
//!
//! Results are stored in target/attacks. Both commands continue from stored results; delete the
//! folder to start again. Heads that `search` found are traces,
//! `target/attacks/NAME-KIND.safetensors`.

#![allow(clippy::unwrap_used, reason = "a tool for developers")]

mod breed;
mod climb;
mod heads;
mod table;

use std::path::{Path, PathBuf};

/// Default number of samples of each head in a verdict.
const TRIALS: u32 = 4000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = arguments.split_first().expect("expected `table` or `search`");
    let options = AttackOptions::parse(rest);
    std::fs::create_dir_all(folder()).unwrap();
    match command.as_str() {
        "table" => table::run(&options),
        "search" => climb::run(&options),
        other => panic!("expected `table` or `search`, found `{other}`"),
    }
}

/// The command line.
struct AttackOptions {
    pipelines: Vec<PathBuf>,
    trials: u32,
    every: usize,
    generations: u32,
}

impl AttackOptions {
    fn parse(arguments: &[String]) -> Self {
        let mut options =
            Self { pipelines: Vec::new(), trials: TRIALS, every: 1, generations: 200 };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut number = || -> u32 {
                let text = arguments.next().map_or("", |text| text);
                text.parse()
                    .unwrap_or_else(|_| panic!("{argument}: expected a number, found {text:?}"))
            };
            match argument.as_str() {
                "--trials" => options.trials = number(),
                "--every" => options.every = number() as usize,
                "--generations" => options.generations = number(),
                file => options.pipelines.push(file.into()),
            }
        }
        assert!(!options.pipelines.is_empty(), "expected a pipeline file, found none");
        options
    }
}

/// Folder of results.
fn folder() -> &'static Path {
    Path::new("target/attacks")
}
