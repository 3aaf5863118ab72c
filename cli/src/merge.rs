//! `vattention merge`: joins the files of several shards.
//!
//! The command of the shards runs again on the joined results. So tables, JSON and plots have one
//! implementation, and the new header shows whether trace, model and pipelines are still the same.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use vattention::experiments::{Header, MergedResults, merge_results};
use vattention::trace::{TraceLayers, check_writable, write_beside};

use crate::fail::{Failure, note, say};
use crate::outputs::OutputArgs;
use crate::paths::{check_plot_name, is_standard_output, refuse_dash, same_file};
use crate::sharing::without_computed_outputs;

const HELP: &str = "\
Result files: the files are joined, and the report of their command is printed for the whole. \
Nothing is computed, but the command's input files must still be at their paths. Files of other \
commands, inputs, versions or numbers of shards are refused; a result that several files contain \
must be equal in all of them.

Traces from `capture --shard`: their layers are joined to the trace that a single run would write.

Exit code 1: the command's verdict is negative, or parts are missing. Missing parts are listed on \
standard error after `incomplete:`, and the existing ones are joined.";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct MergeArgs {
    /// Files of `--results` or `capture --output`, in any order.
    #[arg(required = true, value_name = "FILES")]
    files: Vec<PathBuf>,
    /// File to write the joined results or the joined trace to.
    #[arg(long, value_name = "FILE")]
    results: PathBuf,
    #[command(flatten)]
    outputs: OutputArgs,
    /// For `compare`: write outputs and selections as safetensors; its shards need --dump, too.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// For `tune`: write each of the best pipelines to a file in this folder.
    #[arg(long, short = 'o', value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Function that runs a command on merged results.
type Replay =
    fn(Vec<String>, Option<usize>, &dyn Fn() -> Result<(), Failure>) -> Result<(), Failure>;

pub(crate) fn run(args: &MergeArgs, replay: Replay) -> Result<(), Failure> {
    args.check_outputs()?;
    if args.are_results()? { args.join_results(replay) } else { args.join_traces() }
}

impl MergeArgs {
    /// Refuses outputs that would overwrite a file to join, or each other.
    fn check_outputs(&self) -> Result<(), Failure> {
        let mut taken: Vec<PathBuf> = self.files.iter().map(|path| same_file(path)).collect();
        for (option, path) in [("--results", &self.results)].into_iter().chain(self.outputs()) {
            if option == "--json" && is_standard_output(path) {
                continue;
            }
            if option == "--plot" {
                check_plot_name(path)?;
            }
            refuse_dash(option, path)?;
            let file = same_file(path);
            if taken.contains(&file) {
                let path = path.display();
                let reason = "expected another file than those that are read or written";
                return Err(Failure::input(format!("{option} {path}: {reason}")));
            }
            check_writable(path)?;
            taken.push(file);
        }
        Ok(())
    }

    /// Returns the files that are written beside the results, with their options.
    fn outputs(&self) -> Vec<(&'static str, &PathBuf)> {
        let [json, plot] = self.outputs.files();
        let all = [json, plot, ("--dump", self.dump.as_ref())];
        all.into_iter().filter_map(|(option, path)| Some((option, path?))).collect()
    }

    /// Returns true if the first file has results, and false if it is a trace.
    fn are_results(&self) -> Result<bool, Failure> {
        let path = &self.files[0];
        let mut first = Vec::new();
        let read = File::open(path).and_then(|file| file.take(2).read_to_end(&mut first));
        read.map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
        // A trace begins with the length of its header, a multiple of 8.
        Ok(first.first().is_none_or(|byte| !byte.is_multiple_of(8)))
    }

    fn join_results(&self, replay: Replay) -> Result<(), Failure> {
        let MergedResults { header, text } = merge_results(&self.files)?;
        let other = header.command.first().filter(|command| *command != "tune");
        if let (Some(_), Some(other)) = (&self.output, other) {
            let expected = "expected results of tune, the only command with this option";
            return Err(Failure::input(format!("--output: found results of {other}; {expected}")));
        }
        let mut command = without_computed_outputs(&header.command);
        let folder = self.output.as_ref().map(|folder| ("--output", folder));
        let results = [("--results", &self.results)];
        for (option, path) in results.into_iter().chain(self.outputs()).chain(folder) {
            command.extend([option.to_owned(), path.display().to_string()]);
        }
        let write = || Ok(write_beside(&self.results, text.as_bytes())?);
        let replayed = replay(command, header.shards, &write);
        if matches!(replayed, Err(Failure::ReportedIncomplete)) {
            note(&format!(
                "run these shards again, each with --results on a copy of {}, and merge again",
                self.results.display()
            ));
        }
        replayed
    }

    fn join_traces(&self) -> Result<(), Failure> {
        let folder = self.output.as_ref().map(|folder| ("--output", folder));
        if let Some((option, _)) = self.outputs().into_iter().chain(folder).next() {
            return Err(Failure::input(format!("{option}: expected files of results, not traces")));
        }
        let mut joined: Option<(TraceLayers, Header)> = None;
        for path in &self.files {
            let refuse = |reason: String| Failure::input(format!("{}: {reason}", path.display()));
            let layers = TraceLayers::read(path)?;
            let header = read_header(&layers).ok_or_else(|| {
                refuse("expected a trace from `vattention capture --shard`".into())
            })?;
            let Some((all, first)) = &mut joined else {
                joined = Some((layers, Header { shard: None, ..header }));
                continue;
            };
            let difference = || {
                let infos = [&all.info, &layers.info].map(|info| (&info.model, &info.source));
                let infos = (infos[0] != infos[1]).then(|| "the model or the text".to_owned());
                first.difference_of_shards(&header).or(infos)
            };
            if let Some(difference) = difference() {
                let first_file = self.files[0].display();
                return Err(refuse(format!(
                    "{difference}, in {first_file} and here; expected the same"
                )));
            }
            all.join(layers).map_err(|number| {
                refuse(format!("layer {number} differs from the same layer in another file"))
            })?;
        }
        let (mut all, header) = joined.expect("at least one file is required");
        let expected = header.inputs.get(LAYERS).map_or("", String::as_str).split(',');
        let expected: Vec<usize> = expected.filter_map(|number| number.parse().ok()).collect();
        let missing = expected.iter().filter(|&&number| !all.numbers().any(|it| it == number));
        let missing: Vec<String> = missing.map(ToString::to_string).collect();
        all.info.share = if missing.is_empty() {
            None
        } else {
            Some(serde_json::to_string(&header).map_err(Failure::input)?)
        };
        all.write(&self.results)?;
        if missing.is_empty() {
            return say(&format!("wrote {}", self.results.display()));
        }
        let (count, total) = (missing.len(), expected.len());
        note(&format!("incomplete: {count} of {total} layers are missing: {}", missing.join(", ")));
        Err(Failure::ReportedIncomplete)
    }
}

/// Key of the numbers of all layers to capture, among the inputs in the header of a trace's shard.
pub(crate) const LAYERS: &str = "layers";

/// Returns the header of a trace's shard: everything that its layers depend on.
fn read_header(layers: &TraceLayers) -> Option<Header> {
    serde_json::from_str(layers.info.share.as_ref()?).ok()
}
