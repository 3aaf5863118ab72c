//! The `vattention` command, as a library: a program that links its own selectors and calls [`main`]
//! is a `vattention` that knows them.
//!
//! Exit codes: 0 fine, 1 the answer is no, 2 the input is wrong.

mod bench;
mod calibrate;
mod capture;
mod chat;
mod check;
mod checkpoint;
mod compare;
mod dtype;
mod evaluate;
mod fail;
mod fall_back;
mod generate;
mod list;
mod numbers;
mod outputs;
mod pipelines;
mod plot_steps;
mod progress;
mod setup;
mod study;
mod synth;
mod trace;
mod train_hash;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use fail::Failure;

/// Verified sparse attention: compose strategies in TOML, and measure what they promise.
#[derive(Debug, Parser)]
#[command(name = "vattention", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare pipelines with exact attention on a trace.
    Compare(compare::Args),
    /// Draw many samples, and tell whether a pipeline keeps its promise on a trace.
    Verify(verify::Args),
    /// Repeat an experiment of the paper on a trace.
    #[command(subcommand)]
    Study(study::Command),
    /// Measure decode speed against dense attention, with cold caches.
    Bench(bench::Args),
    /// Let a language model answer by a pipeline, and tell what that read.
    Generate(generate::Args),
    /// Show what `generate --steps` wrote: how errors, densities and error bars went.
    PlotSteps(plot_steps::Args),
    /// Ask a model tasks whose answers lie far back, and judge pipelines by what it answers.
    Evaluate(evaluate::Args),
    /// Show every problem in pipeline files, or the pipelines they make.
    Check(check::Args),
    /// List what pipeline files may name, with fields, defaults and meanings.
    List(list::Args),
    /// Print the JSON Schema of pipeline files, for editors.
    Schema,
    /// Make a trace of synthetic heads of known difficulty.
    Synth(synth::Args),
    /// Make a trace of a language model and a text.
    Capture(capture::Args),
    /// Show what is in a trace, and check all of it.
    Trace(trace::Args),
    /// Find in traces what a selector ranks by.
    #[command(subcommand)]
    Calibrate(calibrate::Command),
    /// Train the maps of `hash-attention` on traces.
    TrainHash(train_hash::Args),
}

/// Runs the command line that the program was called with.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    match check_registry().and_then(|()| run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Refuses to begin with plug-ins that pipeline files could not name.
fn check_registry() -> Result<(), Failure> {
    let faults = vattention::plugin::registry_faults();
    if faults.is_empty() { Ok(()) } else { Err(Failure::input(faults.join("\nerror: "))) }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Compare(args) => compare::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Study(command) => study::run(&command),
        Command::Bench(args) => bench::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::PlotSteps(args) => plot_steps::run(&args),
        Command::Evaluate(args) => evaluate::run(&args),
        Command::Check(args) => check::run(&args),
        Command::List(args) => list::run(&args),
        Command::Schema => list::print_schema(),
        Command::Synth(args) => synth::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Calibrate(command) => calibrate::run(&command),
        Command::TrainHash(args) => train_hash::run(&args),
    }
}

/// Prints a line to standard output; a reader that has gone away is no error.
fn say(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::input(error)),
        _ => Ok(()),
    }
}
