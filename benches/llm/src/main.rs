//! Measures the time of a decoded token with a whole model: this library's session, dense and with
//! pipelines, and candle-transformers' Llama on the same checkpoint.
//!
//! ```text
//! python tools/make_random_checkpoint.py -o random-1b        # or any Llama's folder
//! cd benches/llm
//! cargo run --release -- ../../random-1b --pipelines ../../configs/hash-hybrid.toml \
//!     --contexts 8192,32768 --json ../../models-1b.json
//! ```
//!
//! All entries run in this process on the same threads (`RAYON_NUM_THREADS`; both libraries use all
//! cores by default), compute in f32 with batch 1, and take turns: in each round every entry
//! decodes `--steps` tokens. Medians are over all rounds but the first. The session keeps matrices
//! in bf16 where the checkpoint does; candle has all weights in f32.
//!
//! No context is read, because that takes hours at 32K tokens. The session gets random keys and
//! values, the same in every layer, so attention is nearly flat, and a pipeline with a promise
//! reads the tokens that it needs there. Candle's cache can only be filled by a forward pass, so a
//! model with the same layers and KV heads, and otherwise minimal dimensions, fills it. Its
//! attention still takes `tokens²` operations, so contexts beyond `--candle-most` are left out.
//!
//! The times of a step's parts follow from the session's calls of attention. The report compares
//! the rate at which a part reads its weights with the rate of memory: all cores read 1 GiB that is
//! in no cache, before the first context and after each, and the best rate counts. The program
//! needs 2 or 4 bytes a weight for the session and 4 for candle, each entry's keys and values, and
//! the checkpoint's file while candle reads it. `just models` creates the random checkpoint, and
//! measures it and `models/recall`, whose head size candle's Llama does not support.

mod candle;
mod clock;
mod memory;
mod ours;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use vattention_llm::Model;

use report::{BenchEntry, BenchReport};

/// A result whose error is only printed.
type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Measure the time per decoded token: ours, dense and sparse, and candle-transformers' Llama
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder of a Llama, with `config.json` and `model.safetensors`
    model: PathBuf,
    /// Pipeline files to measure besides dense attention
    #[arg(long, num_args = 0..)]
    pipelines: Vec<PathBuf>,
    /// Tokens before the first timed one, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [8192, 32768])]
    contexts: Vec<usize>,
    /// Longest context at which candle's model is measured; 0 leaves it out
    #[arg(long, default_value_t = 8192)]
    candle_most: usize,
    /// Timed turns of each entry
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Tokens in a turn
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Number type of keys and values in our caches
    #[arg(long, default_value = "f32", value_parser = ["f32", "f16", "bf16"])]
    storage: String,
    /// Write all results to a file
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A model with a sequence to decode.
trait Decoder {
    /// Decodes one token and returns its time.
    fn step(&mut self) -> BenchResult<report::Step>;
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vattention-llm-peers: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> BenchResult<()> {
    let model = Model::open(&arguments.model)?;
    let candle = match arguments.candle_most {
        0 => Err("left out: --candle-most is 0".into()),
        _ => candle::Llama::open(&arguments.model),
    };
    if let Err(reason) = &candle {
        eprintln!("candle-transformers: {reason}");
    }
    let mut report = BenchReport::new(&arguments.model, model.config(), &arguments.storage)?;
    for &context in &arguments.contexts {
        let mut entries = measure(arguments, &model, candle.as_ref().ok(), context)?;
        let profiles = entries.iter_mut().map(BenchEntry::summarise).collect();
        report.add(context, profiles);
    }
    print!("{report}");
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .map_err(|error| format!("--json {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Measures the steps of every entry at a context.
fn measure(
    arguments: &Arguments,
    model: &Model,
    candle: Option<&candle::Llama>,
    context: usize,
) -> BenchResult<Vec<BenchEntry>> {
    let (rounds, steps) = (arguments.rounds as usize, arguments.steps as usize);
    model.check_length(context + (rounds + 1) * steps)?;
    let keys_values = ours::keys_values(model.config().shape, context);
    let mut running: Vec<(BenchEntry, Box<dyn Decoder + '_>)> = Vec::new();
    let files = arguments.pipelines.iter().map(Some);
    for file in std::iter::once(None).chain(files) {
        eprintln!("{context} tokens: {}", ours::name(file));
        let ours = ours::Ours::new(model, file, &arguments.storage, &keys_values)?;
        running.push((BenchEntry::new(ours::name(file)), Box::new(ours)));
    }
    drop(keys_values);
    if let Some(llama) = candle.filter(|_| context <= arguments.candle_most) {
        eprintln!("{context} tokens: candle-transformers");
        let decoder = llama.decoder(context)?;
        running.push((BenchEntry::new("candle-transformers".into()), Box::new(decoder)));
    }
    for round in 0..=rounds {
        for (entry, decoder) in &mut running {
            for _ in 0..steps {
                let step = decoder.step()?;
                if round > 0 {
                    entry.steps.push(step);
                }
            }
        }
    }
    Ok(running.into_iter().map(|(entry, _)| entry).collect())
}
