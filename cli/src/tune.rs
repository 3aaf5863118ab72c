//! `vattention tune`: the best settings of methods, chosen on some traces and measured on others.

mod files;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vattention::config::ParameterGrid;
use vattention::experiments::{
    Candidate, FileDigests, TraceSettings, TuneOptions, Tuning, TuningGoal, TuningTraces,
    digest_of_file, tune,
};
use vattention::plots;
use vattention::trace::Trace;

use crate::backends::BackendArg;
use crate::fail::{Failure, note};
use crate::layers::{LayerRange, layer_numbers};
use crate::outputs::{OutputArgs, check_outputs};
use crate::progress;
use crate::provenance::Provenance;
use crate::sharing::{Call, Sharing};

#[derive(Debug, clap::Args)]
pub(crate) struct TuneArgs {
    /// Grid files, each with a pipeline and values of its keys to try.
    #[arg(required = true)]
    grids: Vec<PathBuf>,
    /// Traces to choose settings on.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Layers of these traces, separated by commas, or ranges such as 9-23; by default, all.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS")]
    layers: Option<Vec<LayerRange>>,
    /// Number of queries of each layer, counted from the last; by default, all.
    #[arg(long, value_name = "N")]
    queries: Option<usize>,
    /// Held-out traces, on which only the best settings are measured.
    #[arg(long, num_args = 1.., value_name = "FILE")]
    held_out: Vec<PathBuf>,
    /// Layers of the held-out traces, separated by commas, or ranges; by default, all.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS", requires = "held_out")]
    held_out_layers: Option<Vec<LayerRange>>,
    /// Number of queries of each held-out layer, counted from the last; by default, all.
    #[arg(long, value_name = "N", requires = "held_out")]
    held_out_queries: Option<usize>,
    /// Goals: density=0.05,0.1 finds the least error at these densities, error=0.01 the least
    /// density at this mean error. By default, the Pareto front of density and error is reported.
    #[arg(long, value_name = "GOALS")]
    at: Vec<String>,
    /// Rungs of successive halving: each rung measures the best candidates of the previous one on
    /// twice as many queries. 1 measures all candidates on all queries.
    #[arg(long, default_value_t = TuneOptions::default().rungs, value_name = "N")]
    #[arg(value_parser = rungs)]
    rungs: usize,
    /// Share of each method's candidates that continues to the next rung.
    #[arg(long, default_value_t = TuneOptions::default().keep, value_name = "SHARE")]
    #[arg(value_parser = share)]
    keep: f64,
    #[command(flatten)]
    machine: BackendArg,
    #[command(flatten)]
    sharing: Sharing,
    #[command(flatten)]
    outputs: OutputArgs,
    /// Write each of the best pipelines to a file in this folder.
    #[arg(long, short = 'o', value_name = "FOLDER")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &TuneArgs, call: &Call) -> Result<(), Failure> {
    let backend = args.machine.find()?;
    let goals = args.goals()?;
    let (candidates, files) = load_candidates(&args.grids)?;
    let (chosen, held_out) = (open(&args.trace)?, open(&args.held_out)?);
    let inputs: Vec<&Path> = [&files, &args.grids, &args.trace, &args.held_out]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let [json, plot] = args.outputs.files();
    check_outputs(&[json, plot, ("--results", args.sharing.results.as_ref())], &inputs)?;
    if let Some(folder) = &args.output {
        files::check_folder(folder)?;
    }
    let chosen_settings = settings(args.layers.as_ref(), args.queries);
    let held_out_settings = settings(args.held_out_layers.as_ref(), args.held_out_queries);
    let results = args.sharing.open(call, || digests(&candidates, &inputs))?;
    let options = TuneOptions { goals, rungs: args.rungs, keep: args.keep };
    let bar = progress::bar("candidates");
    let found = tune(
        &candidates,
        TuningTraces { traces: &chosen, settings: &chosen_settings },
        (!held_out.is_empty())
            .then_some(TuningTraces { traces: &held_out, settings: &held_out_settings }),
        &*backend,
        &options,
        &results,
        &|done, total| {
            if done == 1 {
                // Each rung, and the measurement on held-out traces, counts from 1.
                bar.set_position(0);
            }
            progress::show(&bar, done, total);
        },
    );
    bar.finish_and_clear();
    args.publish(&found?, call, &inputs)
}

impl TuneArgs {
    fn goals(&self) -> Result<Vec<TuningGoal>, Failure> {
        let mut goals = Vec::new();
        for text in &self.at {
            let (name, numbers) = text.split_once('=').unwrap_or((text, ""));
            for number in numbers.split(',') {
                let goal: TuningGoal = format!("{name}={number}")
                    .parse()
                    .map_err(|error| Failure::input(format!("--at {text}: {error}")))?;
                if goals.contains(&goal) {
                    let reason = "is given twice; expected each goal once";
                    return Err(Failure::input(format!("--at: {goal} {reason}")));
                }
                goals.push(goal);
            }
        }
        Ok(goals)
    }

    fn publish(&self, found: &Tuning, call: &Call, inputs: &[&Path]) -> Result<(), Failure> {
        let left_out = list_left_out(found);
        if found.tried.is_empty() {
            return Err(Failure::all(&left_out));
        }
        for message in &left_out {
            note(&format!("left out: {message}"));
        }
        if let Some(folder) = &self.output {
            files::write(folder, found)?;
        }
        let pipelines = found.tried.iter().map(|tried| &*tried.pipeline);
        let run = || Provenance::new(call, inputs, pipelines, Some(&found.backend));
        self.outputs.publish(run, found, || plots::tuning(found), &table::table(found))
    }
}

/// Returns messages about the candidates that could not be measured, one per method and reason.
fn list_left_out(found: &Tuning) -> Vec<String> {
    let mut reasons: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for candidate in &found.left_out {
        let settings = table::format_settings(&candidate.settings);
        let matches = |(method, reason, _): &&mut (&str, &str, Vec<String>)| {
            *method == candidate.method && *reason == candidate.reason
        };
        match reasons.iter_mut().find(matches) {
            Some((.., all)) => all.push(settings),
            None => reasons.push((&candidate.method, &candidate.reason, vec![settings])),
        }
    }
    let describe = |(method, reason, all): (&str, &str, Vec<String>)| match &all[..] {
        [settings] => format!("{method} ({settings}): {reason}"),
        _ => format!("{method} ({} candidates): {reason}", all.len()),
    };
    reasons.into_iter().map(describe).collect()
}

/// Loads the candidates of all grids, and returns the files that were read for them, too. A grid
/// whose pipeline's files are missing is left out, unless this applies to all grids.
///
/// # Errors
/// All problems of all grids.
fn load_candidates(grids: &[PathBuf]) -> Result<(Vec<Candidate>, Vec<PathBuf>), Failure> {
    let (mut candidates, mut files, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let mut unreadable = Vec::new();
    for path in grids {
        match ParameterGrid::load(path) {
            Ok(grid) => {
                files.extend(grid.files);
                candidates.extend(grid.combinations.into_iter().map(|combination| Candidate {
                    method: grid.name.clone(),
                    settings: combination.settings,
                    pipeline: combination.pipeline,
                    file: path.display().to_string(),
                    search: grid.search,
                }));
            }
            Err(error) if error.is_unreadable_file() => unreadable.push((path, error)),
            Err(error) => errors.push(error),
        }
    }
    if candidates.is_empty() {
        errors.extend(unreadable.drain(..).map(|(_, error)| error));
    }
    if errors.is_empty() {
        for (path, error) in &unreadable {
            note(&format!("left out: {}: {}", path.display(), error.summary()));
        }
    }
    if errors.is_empty() { Ok((candidates, files)) } else { Err(Failure::Config(errors)) }
}

/// Returns digests of all input files, and of the candidates with the files that they name.
fn digests(
    candidates: &[Candidate],
    inputs: &[&Path],
) -> Result<BTreeMap<String, String>, Failure> {
    let files = FileDigests::default();
    let mut digests = BTreeMap::new();
    for input in inputs {
        digests.insert(input.display().to_string(), digest_of_file(input)?);
    }
    for candidate in candidates {
        let name = format!("{} {:?}", candidate.file, candidate.settings);
        digests.insert(name, files.digest_pipeline(&candidate.pipeline)?);
    }
    Ok(digests)
}

fn open(paths: &[PathBuf]) -> Result<Vec<Trace>, Failure> {
    Ok(paths.iter().map(|path| Trace::open(path)).collect::<Result<_, _>>()?)
}

fn settings(layers: Option<&Vec<LayerRange>>, queries: Option<usize>) -> TraceSettings {
    TraceSettings { layers: layer_numbers(layers), queries, ..TraceSettings::default() }
}

fn rungs(text: &str) -> Result<usize, String> {
    let rungs = text.parse().ok().filter(|rungs| (1..=16).contains(rungs));
    rungs.ok_or_else(|| "expected a whole number from 1 to 16".into())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|&share: &f64| 0.0 < share && share <= 1.0);
    share.ok_or_else(|| "expected a number above 0, at most 1".into())
}
