//! Work that is kept as it is done, and may be a share of the whole.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use vattention::experiments::{Entry, Files, Header, Incomplete, Part, Results, Shard};

use crate::fail::{Failure, note, say};
use crate::paths::refuse_dash;

/// The version, the commit, and whether models are built in, as `--version` says them.
pub const VERSION: &str = env!("VATTENTION_VERSION");

/// How a command was called: by the user, or by `merge` to tell what others have computed.
#[derive(Debug, Default)]
pub(crate) struct Call {
    /// The command and its arguments.
    pub(crate) args: Vec<String>,
    /// By `merge`: nothing is computed.
    pub(crate) replay: Option<Part>,
    /// The share that was done, and where it is kept.
    share: OnceCell<(Shard, PathBuf)>,
}

/// Where results are kept, and which are computed.
#[derive(Debug, clap::Args)]
pub(crate) struct Sharing {
    /// Keep what each part of the work comes to there, as it comes. Run again, the command goes on from
    /// what is there.
    #[arg(long, value_name = "FILE")]
    pub(crate) results: Option<PathBuf>,
    /// Do the i-th of n shares of the work, and keep it in --results; `vattention merge` joins them. By
    /// default, in a Slurm array with --results, the task's share; else all.
    #[arg(long, value_name = "I/N", requires = "results")]
    shard: Option<Shard>,
}

/// Options that change no result, and whether they have a short name.
const OUTPUTS: [&str; 8] =
    ["--results", "--shard", "--json", "--plot", "--dump", "--at-once", "--output", "-o"];

/// Outputs that need more to be computed, by command: these are told of, but for their files.
const WANTED: [(&str, &str); 2] = [("compare", "--dump"), ("verify", "--plot")];

impl Call {
    /// By the user, with this command line, of which the first is the program's name.
    pub(crate) fn new(args: &[OsString]) -> Self {
        let args = args.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        Self { args, ..Self::default() }
    }

    /// By `merge`, of so many shards.
    pub(crate) fn replay(args: Vec<String>, shards: Option<usize>) -> Self {
        Self { args, replay: Some(Part::Nothing { shards }), ..Self::default() }
    }

    /// What results depend on.
    pub(crate) fn header(&self, inputs: BTreeMap<String, String>) -> Header {
        let vattention = VERSION.to_owned();
        Header { vattention, command: canonical(&self.args), inputs, shards: None, shard: None }
    }

    /// The arguments on which results depend: all but outputs.
    pub(crate) fn command_of_results(&self) -> Vec<String> {
        without_wanted(&canonical(&self.args))
    }

    /// What a command that lacks results of others says.
    pub(crate) fn tell_incomplete(&self, incomplete: &Incomplete) -> Result<(), Failure> {
        if self.replay.is_some() {
            note(&format!("incomplete: {incomplete}"));
            return Err(Failure::Missing);
        }
        let Some((shard, path)) = self.share.get() else { return Err(Failure::input(incomplete)) };
        say(&format!(
            "share {shard} is done and kept in {}\n`vattention merge FILES... --results ALL` joins the \
             files of all {} shares",
            path.display(),
            shard.count()
        ))
    }
}

impl Sharing {
    /// Opens the results of work that depends on `inputs`.
    pub(crate) fn open(
        &self,
        call: &Call,
        inputs: impl FnOnce() -> Result<BTreeMap<String, String>, Failure>,
    ) -> Result<Results, Failure> {
        let Some(path) = &self.results else { return Ok(Results::default()) };
        refuse_dash("--results", path)?;
        let part = self.part(call)?;
        Ok(Results::open(path, &call.header(inputs()?), part)?)
    }

    /// Which part of the work is to be done.
    pub(crate) fn part(&self, call: &Call) -> Result<Part, Failure> {
        if let Some(nothing) = call.replay {
            return Ok(nothing);
        }
        let Some(path) = &self.results else { return Ok(Part::All) };
        let Some(shard) = self.shard.map_or_else(of_slurm, |shard| Ok(Some(shard)))? else {
            return Ok(Part::All);
        };
        // It is set once: a command opens its results once.
        let _ = call.share.set((shard, path.clone()));
        Ok(Part::Shard(shard))
    }
}

/// The share of a task in a Slurm array.
fn of_slurm() -> Result<Option<Shard>, Failure> {
    let number = |name: &str| env::var(name).ok().map(|text| (text.parse::<usize>().ok(), text));
    let Some((id, text)) = number("SLURM_ARRAY_TASK_ID") else { return Ok(None) };
    let of = |name| number(name).and_then(|(number, _)| number);
    let (count, least) = (of("SLURM_ARRAY_TASK_COUNT"), of("SLURM_ARRAY_TASK_MIN"));
    let most = of("SLURM_ARRAY_TASK_MAX");
    let shard = || {
        let (id, count, least) = (id?, count?, least?);
        let gapless =
            most.is_none_or(|most| most.checked_sub(least) == Some(count.wrapping_sub(1)));
        Shard::new(id.checked_sub(least)? + 1, count).filter(|_| gapless)
    };
    let shard = shard().ok_or_else(|| {
        let expected = "expected a task of an array without gaps, or --shard i/n (1/1: all)";
        Failure::input(format!("SLURM_ARRAY_TASK_ID {text}: {expected}"))
    })?;
    note(&format!(
        "--shard {shard}, as SLURM_ARRAY_TASK_ID {text} says; --shard 1/1 does all of the work"
    ));
    Ok(Some(shard))
}

/// Digests of pipelines with the files that they name.
pub(crate) fn pipelines(entries: &[Entry]) -> Result<BTreeMap<String, String>, Failure> {
    let files = Files::default();
    let one = |(i, entry): (usize, &Entry)| {
        let name = format!("pipeline {} ({})", i + 1, entry.file);
        Ok((name, files.digest_pipeline(&entry.pipeline)?))
    };
    entries.iter().enumerate().map(one).collect()
}

/// Arguments without those that change no result; outputs that are wanted come last.
fn canonical(args: &[String]) -> Vec<String> {
    let mut args = args.iter();
    let (mut kept, mut wanted) = (Vec::new(), Vec::new());
    while let Some(arg) = args.next() {
        let (name, with_value) = match arg.split_once('=') {
            Some((name, _)) => (name, true),
            None => (arg.as_str(), false),
        };
        if OUTPUTS.contains(&name) {
            if !with_value {
                args.next();
            }
            let command = kept.first().map(String::as_str);
            if WANTED.iter().any(|&(of, option)| Some(of) == command && option == name) {
                wanted.push(name.to_owned());
            }
        } else {
            kept.push(arg.clone());
        }
    }
    wanted.sort();
    kept.extend(wanted);
    kept
}

/// Arguments of a header, without the outputs that are wanted.
pub(crate) fn without_wanted(command: &[String]) -> Vec<String> {
    let is_wanted = |arg: &&String| WANTED.iter().any(|(_, option)| option == arg);
    command.iter().filter(|arg| !is_wanted(arg)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_no_part_of_the_work() {
        let of = |text: &str| {
            let args: Vec<String> = text.split(' ').map(str::to_owned).collect();
            canonical(&args).join(" ")
        };
        let given = "compare --json a --shard=1/3 b.toml --dump c --queries 3 --results d";
        assert_eq!(of(given), "compare b.toml --queries 3 --dump");
        assert_eq!(of("verify --plot=x a.toml --trials 9"), "verify a.toml --trials 9 --plot");
        assert_eq!(of("evaluate --plot x --at-once 2 --seed 1"), "evaluate --seed 1");
        assert_eq!(of("capture -o x --text y"), "capture --text y");
    }
}
