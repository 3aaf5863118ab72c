//! Stored results, and shards of the work.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use vattention::experiments::{Entry, FileDigests, Header, Incomplete, Part, Results, Shard};

use crate::fail::{Failure, note, say};
use crate::paths::refuse_dash;

/// Text of `--version`: the version, the commit, and whether models are built in.
pub const VERSION: &str = env!("VATTENTION_VERSION");

/// Call of a command, by the user or by `merge`, which reports results of shards.
#[derive(Debug, Default)]
pub(crate) struct Call {
    /// Command and its arguments.
    pub(crate) args: Vec<String>,
    /// Set by `merge`: nothing is computed.
    pub(crate) replay: Option<Part>,
    /// The shard that is computed, and the file of its results.
    share: OnceCell<(Shard, PathBuf)>,
}

/// File of the stored results, and the part of the work to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Sharing {
    /// Store the result of each part of the work in this file. Run again, the command continues
    /// from the stored results.
    #[arg(long, value_name = "FILE")]
    pub(crate) results: Option<PathBuf>,
    /// Do shard i of n and store it in --results; `vattention merge` joins the shards. By default,
    /// all of the work is done; a task of a Slurm array with --results does its own shard.
    #[arg(long, value_name = "I/N", requires = "results")]
    shard: Option<Shard>,
}

/// Options that change no result.
const OUTPUTS: [&str; 8] =
    ["--results", "--shard", "--json", "--plot", "--dump", "--at-once", "--output", "-o"];

/// Outputs that need additional results, by command. Headers contain these options without the
/// names of their files.
const COMPUTED_OUTPUTS: [(&str, &str); 2] = [("compare", "--dump"), ("verify", "--plot")];

impl Call {
    /// Returns a call by the user with this command line, whose first element is the program's
    /// name.
    pub(crate) fn new(args: &[OsString]) -> Self {
        let args = args.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        Self { args, ..Self::default() }
    }

    /// Returns a call by `merge`, of this number of shards.
    pub(crate) fn replay(args: Vec<String>, shards: Option<usize>) -> Self {
        Self { args, replay: Some(Part::Nothing { shards }), ..Self::default() }
    }

    /// Returns everything that results depend on.
    pub(crate) fn header(&self, inputs: BTreeMap<String, String>) -> Header {
        let vattention = VERSION.to_owned();
        Header { vattention, command: canonical(&self.args), inputs, shards: None, shard: None }
    }

    /// Returns the arguments on which results depend: all but outputs.
    pub(crate) fn command_of_results(&self) -> Vec<String> {
        without_computed_outputs(&canonical(&self.args))
    }

    /// Reports that results of other shards are missing: as success if this call computed a shard.
    pub(crate) fn report_incomplete(&self, incomplete: &Incomplete) -> Result<(), Failure> {
        if self.replay.is_some() {
            note(&format!("incomplete: {incomplete}"));
            return Err(Failure::ReportedIncomplete);
        }
        let Some((shard, path)) = self.share.get() else { return Err(Failure::input(incomplete)) };
        say(&format!(
            "shard {shard} is done and stored in {}\n\
             `vattention merge FILES... --results ALL` joins the files of all {} shards",
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

    /// Returns the part of the work to do.
    pub(crate) fn part(&self, call: &Call) -> Result<Part, Failure> {
        if let Some(nothing) = call.replay {
            return Ok(nothing);
        }
        let Some(path) = &self.results else { return Ok(Part::All) };
        let Some(shard) = self.shard.map_or_else(find_slurm_shard, |shard| Ok(Some(shard)))? else {
            return Ok(Part::All);
        };
        // The cell is empty, because a command opens its results once.
        let _ = call.share.set((shard, path.clone()));
        Ok(Part::Shard(shard))
    }
}

/// Returns the shard of this task, if it belongs to a Slurm array.
fn find_slurm_shard() -> Result<Option<Shard>, Failure> {
    let Ok(text) = env::var("SLURM_ARRAY_TASK_ID") else { return Ok(None) };
    let id: Option<usize> = text.parse().ok();
    let number = |name: &str| env::var(name).ok()?.parse::<usize>().ok();
    let (count, least) = (number("SLURM_ARRAY_TASK_COUNT"), number("SLURM_ARRAY_TASK_MIN"));
    let most = number("SLURM_ARRAY_TASK_MAX");
    let shard = || {
        let (id, count, least) = (id?, count?, least?);
        let gapless =
            most.is_none_or(|most| most.checked_sub(least) == Some(count.wrapping_sub(1)));
        Shard::new(id.checked_sub(least)? + 1, count).filter(|_| gapless)
    };
    let shard = shard().ok_or_else(|| {
        let expected = "expected a task of an array without gaps; or give --shard i/n (1/1: all)";
        Failure::input(format!("SLURM_ARRAY_TASK_ID {text}: {expected}"))
    })?;
    note(&format!(
        "--shard {shard}, from SLURM_ARRAY_TASK_ID {text}; --shard 1/1 does all of the work"
    ));
    Ok(Some(shard))
}

/// Returns digests of pipelines with the files that they name.
pub(crate) fn digest_pipelines(entries: &[Entry]) -> Result<BTreeMap<String, String>, Failure> {
    let files = FileDigests::default();
    let digest = |(i, entry): (usize, &Entry)| {
        let name = format!("pipeline {} ({})", i + 1, entry.file);
        Ok((name, files.digest_pipeline(&entry.pipeline)?))
    };
    entries.iter().enumerate().map(digest).collect()
}

/// Returns the arguments without those that change no result, and with [`COMPUTED_OUTPUTS`] last.
fn canonical(args: &[String]) -> Vec<String> {
    let mut args = args.iter();
    let (mut rest, mut outputs) = (Vec::new(), Vec::new());
    while let Some(arg) = args.next() {
        let (name, with_value) = match arg.split_once('=') {
            Some((name, _)) => (name, true),
            None => (arg.as_str(), false),
        };
        if OUTPUTS.contains(&name) {
            if !with_value {
                args.next();
            }
            let command = rest.first().map(String::as_str);
            let is_computed = |&(other, option)| Some(other) == command && option == name;
            if COMPUTED_OUTPUTS.iter().any(is_computed) {
                outputs.push(name.to_owned());
            }
        } else {
            rest.push(arg.clone());
        }
    }
    outputs.sort();
    rest.extend(outputs);
    rest
}

/// Returns the arguments of a header without [`COMPUTED_OUTPUTS`].
pub(crate) fn without_computed_outputs(command: &[String]) -> Vec<String> {
    let is_computed = |arg: &&String| COMPUTED_OUTPUTS.iter().any(|(_, option)| option == arg);
    command.iter().filter(|arg| !is_computed(arg)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_do_not_depend_on_output_options() {
        let shorten = |text: &str| {
            let args: Vec<String> = text.split(' ').map(str::to_owned).collect();
            canonical(&args).join(" ")
        };
        let line = "compare --json a --shard=1/3 b.toml --dump c --queries 3 --results d";
        assert_eq!(shorten(line), "compare b.toml --queries 3 --dump");
        let line = "verify --plot=x a.toml --trials 9";
        assert_eq!(shorten(line), "verify a.toml --trials 9 --plot");
        assert_eq!(shorten("evaluate --plot x --at-once 2 --seed 1"), "evaluate --seed 1");
        assert_eq!(shorten("capture -o x --text y"), "capture --text y");
    }
}
