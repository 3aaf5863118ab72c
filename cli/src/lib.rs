//! The `vattention` command, as a library.
//!
//! A program that links its own selectors and calls [`main`] is a `vattention` with these
//! selectors; the Python package calls [`main_from`]. The feature `models` is a default. Without
//! it, there are no commands that run language models or train on traces, and no tensor library is
//! compiled.
//!
//! Exit codes: 0 success, 1 a negative verdict or missing results, 2 wrong input, 3 an undecided
//! verdict, 130 an interruption.

mod backends;
mod bench;
mod check;
mod compare;
mod fail;
mod interrupt;
mod json_fields;
mod layers;
mod list;
mod merge;
#[cfg(feature = "models")]
mod models;
mod numbers;
mod on_trace;
mod outputs;
mod paths;
mod pipelines;
mod progress;
mod provenance;
mod reference;
mod schema;
mod sharing;
mod study;
mod synth;
mod table;
mod trace;
mod tune;
mod verify;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use fail::Failure;
use sharing::Call;

pub use sharing::VERSION;

/// Verified sparse attention: compose pipelines in TOML, and test what they promise.
#[derive(Debug, Parser)]
#[command(name = "vattention", version = VERSION, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare pipelines with exact attention on a trace.
    Compare(compare::CompareArgs),
    /// Test whether a pipeline keeps its promise on a trace.
    Verify(verify::VerifyArgs),
    /// Repeat an experiment of the paper on a trace.
    #[command(subcommand)]
    Study(study::StudyCommand),
    /// Join the files of several shards, and report their joint results.
    Merge(merge::MergeArgs),
    /// Find the best settings of methods on traces.
    Tune(tune::TuneArgs),
    /// Measure decode speed against dense attention, with cold caches.
    Bench(bench::BenchArgs),
    /// Check pipeline files, and print the pipelines in full.
    Check(check::CheckArgs),
    /// List selectors, samplers, estimators and backends, with their fields.
    List(list::ListArgs),
    /// Print the JSON Schema of pipeline files, for editors.
    Schema(schema::SchemaArgs),
    /// Print a completion script for a shell.
    Completions(reference::CompletionsArgs),
    /// Write a manual page for each command.
    Man(reference::ManArgs),
    /// Write a trace of synthetic heads of known difficulty.
    Synth(synth::SynthArgs),
    /// Check a whole trace, and show its layers.
    Trace(trace::TraceArgs),
    #[cfg(feature = "models")]
    #[command(flatten)]
    Models(models::ModelCommand),
}

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    main_from(std::env::args_os()).into()
}

/// Runs a command line, whose first element is the program's name, and returns the exit code. All
/// output is flushed.
///
/// Ctrl-C ends the whole process, so a process that calls this function should do nothing else.
pub fn main_from(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let call = Call::new(&args);
    interrupt::prepare(&call.args);
    let code = match Cli::try_parse_from(args) {
        Ok(Cli { command }) => match check_registry().and_then(|()| run_call(command, &call)) {
            Ok(()) => 0,
            Err(failure) => failure.report(),
        },
        Err(usage) => {
            // clap's own `exit` ignores a failure to print, too: it cannot be reported anywhere.
            let _ = usage.print();
            u8::from(usage.use_stderr()) * 2
        }
    };
    // Rust flushes an unfinished line when a Rust program ends, but this may be a Python process.
    let _ = std::io::stdout().flush();
    code
}

/// Refuses to run with plug-ins that pipeline files could not name.
fn check_registry() -> Result<(), Failure> {
    let faults = vattention::plugin::registry_faults();
    if faults.is_empty() { Ok(()) } else { Err(Failure::input(faults.join("\nerror: "))) }
}

/// Runs a command, and reports missing results of other shards.
fn run_call(command: Command, call: &Call) -> Result<(), Failure> {
    match run(command, call) {
        Err(Failure::Incomplete(incomplete)) => call.report_incomplete(&incomplete),
        other => other,
    }
}

/// Runs the command of merged results again, on these results. `begin` is called after the command
/// has been parsed, and before it runs.
fn replay(
    command: Vec<String>,
    shards: Option<usize>,
    begin: &dyn Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let program = "vattention".to_owned();
    let cli = Cli::try_parse_from([program].iter().chain(&command)).map_err(Failure::input)?;
    begin()?;
    run_call(cli.command, &Call::replay(command, shards))
}

fn run(command: Command, call: &Call) -> Result<(), Failure> {
    match command {
        Command::Compare(args) => compare::run(&args, call),
        Command::Verify(args) => verify::run(&args, call),
        Command::Study(command) => study::run(command, call),
        Command::Merge(args) => merge::run(&args, replay),
        Command::Tune(args) => tune::run(&args, call),
        Command::Bench(args) => bench::run(&args, call),
        Command::Check(args) => check::run(&args),
        Command::List(args) => list::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => reference::print_completions(&args, Cli::command()),
        Command::Man(args) => reference::write_man_pages(&args, Cli::command()),
        Command::Synth(args) => synth::run(&args),
        Command::Trace(args) => trace::run(&args),
        #[cfg(feature = "models")]
        Command::Models(command) => models::run(&command, call),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;

    /// Returns every command, with its subcommands.
    fn commands(command: Command) -> Vec<Command> {
        let within: Vec<Command> = command.get_subcommands().cloned().flat_map(commands).collect();
        [vec![command], within].concat()
    }

    /// Help texts have line breaks only between sentences, so that the terminal's width alone wraps
    /// them; lines of tables fit into 80 columns.
    #[test]
    fn help_is_not_wrapped_by_hand() {
        let all = commands(Cli::command());
        let texts: Vec<String> =
            all.iter().filter_map(Command::get_after_help).map(ToString::to_string).collect();
        for line in texts.iter().flat_map(|text| text.lines()).filter(|line| !line.is_empty()) {
            if line.starts_with("  ") {
                assert!(line.chars().count() <= 80, "{line}");
            } else {
                assert!(line.ends_with(['.', ':', '!', '?']), "{line}");
            }
        }
        assert!(!texts.is_empty());
    }

    #[test]
    fn help_is_at_most_100_columns_wide() {
        for mut command in commands(Cli::command().max_term_width(100)) {
            let help = command.render_long_help().to_string();
            let widest = help.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
            assert!(widest.chars().count() <= 100, "{}: {widest}", command.get_name());
        }
    }
}
