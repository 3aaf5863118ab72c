//! The `vattention` command, as a library: a program that links its own selectors and calls [`main`]
//! is a `vattention` that knows them; the Python package calls [`main_from`]. Without the feature `models`, which is a default, it has no commands that run language
//! models or learn from traces, and compiles no tensor library.
//!
//! Exit codes: 0 fine, 1 the answer is no, 2 the input is wrong.

mod backends;
mod bench;
mod check;
mod compare;
mod fail;
mod interrupt;
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

/// Verified sparse attention: compose strategies in TOML, and measure what they promise.
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
    /// Draw many samples, and tell whether a pipeline keeps its promise on a trace.
    Verify(verify::VerifyArgs),
    /// Repeat an experiment of the paper on a trace.
    #[command(subcommand)]
    Study(study::StudyCommand),
    /// Join the files of several shards, and tell what all of them came to.
    Merge(merge::MergeArgs),
    /// Find the best settings of methods on traces.
    Tune(tune::TuneArgs),
    /// Measure decode speed against dense attention, with cold caches.
    Bench(bench::BenchArgs),
    /// Show every problem in pipeline files, or the pipelines they make.
    Check(check::CheckArgs),
    /// List what pipeline files may name, with fields, defaults and meanings.
    List(list::ListArgs),
    /// Print the JSON Schema of pipeline files, for editors.
    Schema,
    /// Print a script that completes commands and options in a shell.
    Completions(reference::CompletionsArgs),
    /// Write manual pages, one for each command.
    Man(reference::ManArgs),
    /// Make a trace of synthetic heads of known difficulty.
    Synth(synth::SynthArgs),
    /// Show what is in a trace, and check all of it.
    Trace(trace::TraceArgs),
    #[cfg(feature = "models")]
    #[command(flatten)]
    Models(models::ModelCommand),
}

/// Runs the command line that the program was called with.
pub fn main() -> ExitCode {
    main_from(std::env::args_os()).into()
}

/// Runs a command line, of which the first is the program's name, and returns the exit code; whatever was said has been written.
///
/// Ctrl-C ends the process, as a program's: a process that calls this should do nothing else.
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
            // As clap's own `exit`: when nobody can read it, there is nobody to tell.
            let _ = usage.print();
            u8::from(usage.use_stderr()) * 2
        }
    };
    // What is left of a line: outside of a Rust program nobody writes it at the end.
    let _ = std::io::stdout().flush();
    code
}

/// Refuses to begin with plug-ins that pipeline files could not name.
fn check_registry() -> Result<(), Failure> {
    let faults = vattention::plugin::registry_faults();
    if faults.is_empty() { Ok(()) } else { Err(Failure::input(faults.join("\nerror: "))) }
}

/// Runs a command, and tells what it lacks of the results of others.
fn run_call(command: Command, call: &Call) -> Result<(), Failure> {
    match run(command, call) {
        Err(Failure::Incomplete(incomplete)) => call.tell_incomplete(&incomplete),
        other => other,
    }
}

/// Runs the command of merged results on them, after `begin`, which runs once the command is known to be one.
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
        Command::Schema => list::print_schema(),
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

    /// Checked at the width without a terminal, too.
    #[test]
    fn help_is_at_most_100_columns_wide() {
        for mut command in commands(Cli::command().max_term_width(100)) {
            let help = command.render_long_help().to_string();
            let widest = help.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
            assert!(widest.chars().count() <= 100, "{}: {widest}", command.get_name());
        }
    }
}
