//! Output files of commands, checked before the work begins.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use schemars::JsonSchema;
use serde::Serialize;
use vattention::trace::{check_writable, partial_path, write_beside};

use crate::fail::{Failure, say};
use crate::paths::{check_plot_name, is_standard_output, refuse_dash, same_file};
use crate::provenance::Provenance;

/// Ctrl-C policy: abort the command, or stop its work early and report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    /// True if the next Ctrl-C only stops the work.
    stops_work: Arc<AtomicBool>,
    /// True if the work should stop.
    requested: Arc<AtomicBool>,
}

#[cfg(feature = "models")]
impl Interrupt {
    /// Makes the next Ctrl-C stop only the work; the one after it aborts the command.
    pub(crate) fn stop_work_first(&self) {
        self.stops_work.store(true, Ordering::Relaxed);
    }

    /// Makes the next Ctrl-C abort the command again, and withdraws a request to stop the work.
    pub(crate) fn end_work(&self) {
        self.stops_work.store(false, Ordering::Relaxed);
        self.requested.store(false, Ordering::Relaxed);
    }

    /// Returns true if the work should stop.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }
}

impl Interrupt {
    /// Handles a Ctrl-C by stopping the work. Returns false if the command must be aborted.
    fn stop_work(&self) -> bool {
        let stops_work = self.stops_work.swap(false, Ordering::Relaxed);
        if stops_work {
            self.requested.store(true, Ordering::Relaxed);
        }
        stops_work
    }
}

/// Files that results are written to.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Write the results as JSON; `-` writes to standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Plot the results as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

impl OutputArgs {
    /// Returns the files with the options that name them.
    pub(crate) fn files(&self) -> [(&'static str, Option<&PathBuf>); 2] {
        [("--json", self.json.as_ref()), ("--plot", self.plot.as_ref())]
    }

    /// Refuses files that cannot be written, or that would overwrite an input or each other.
    pub(crate) fn check<'a>(
        &self,
        inputs: impl IntoIterator<Item = &'a PathBuf>,
    ) -> Result<(), Failure> {
        let inputs: Vec<&Path> = inputs.into_iter().map(PathBuf::as_path).collect();
        check_outputs(&self.files(), &inputs)
    }

    /// Writes the plot and the JSON if their options are given, and prints `text` unless the JSON
    /// goes to standard output.
    pub(crate) fn publish(
        &self,
        run: impl FnOnce() -> Result<Provenance, Failure>,
        results: &impl Serialize,
        svg: impl FnOnce() -> String,
        text: &str,
    ) -> Result<(), Failure> {
        if let Some(path) = &self.plot {
            write_beside(path, svg().as_bytes())?;
        }
        let Some(path) = &self.json else { return say(text) };
        write_json(path, run, results)?;
        if is_standard_output(path) { Ok(()) } else { say(text) }
    }
}

/// Refuses outputs that cannot be written, or that would overwrite an input or each other.
pub(crate) fn check_outputs(
    outputs: &[(&'static str, Option<&PathBuf>)],
    inputs: &[&Path],
) -> Result<(), Failure> {
    check_outputs_with(&Interrupt::default(), outputs, inputs)
}

/// Checks outputs like [`check_outputs`], for a command whose work Ctrl-C can stop without aborting
/// the command.
pub(crate) fn check_outputs_with(
    interrupt: &Interrupt,
    outputs: &[(&'static str, Option<&PathBuf>)],
    inputs: &[&Path],
) -> Result<(), Failure> {
    let mut taken: Vec<(&str, PathBuf)> =
        inputs.iter().map(|path| ("an input", same_file(path))).collect();
    for (option, path) in outputs {
        let Some(path) = path else { continue };
        if *option == "--json" && is_standard_output(path) {
            continue;
        }
        refuse_dash(option, path)?;
        let file = same_file(path);
        if let Some((what, _)) = taken.iter().find(|(_, other)| *other == file) {
            let message = format!("{option} {}: expected another file than {what}", path.display());
            return Err(Failure::input(message));
        }
        if *option == "--plot" {
            check_plot_name(path)?;
        }
        check_writable(path)?;
        taken.push((option, file));
    }
    let partial = outputs.iter().filter_map(|(_, path)| path.map(|path| partial_path(path)));
    remove_partial_on_interrupt(partial.collect(), interrupt.clone())
}

/// Results with their provenance.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Document<R> {
    /// Provenance of the results.
    run: Provenance,
    #[serde(flatten)]
    results: R,
}

/// Writes the provenance from `run` and the results as JSON, to a file or to standard output.
pub(crate) fn write_json(
    path: &Path,
    run: impl FnOnce() -> Result<Provenance, Failure>,
    results: &impl Serialize,
) -> Result<(), Failure> {
    let document = Document { run: run()?, results };
    let text = serde_json::to_string_pretty(&document).map_err(Failure::input)?;
    if is_standard_output(path) {
        return say(&text);
    }
    Ok(write_beside(path, format!("{text}\n").as_bytes())?)
}

/// Sets a handler of Ctrl-C that removes partial outputs and exits with 130, unless the interrupt
/// only stops the work.
fn remove_partial_on_interrupt(partial: Vec<PathBuf>, interrupt: Interrupt) -> Result<(), Failure> {
    let clean_up = move || {
        if interrupt.stop_work() {
            return;
        }
        for path in &partial {
            // Most do not exist: a partial file exists only while its output is being written.
            let _ = std::fs::remove_file(path);
        }
        crate::interrupt::report();
        std::process::exit(130);
    };
    ctrlc::set_handler(clean_up).map_err(Failure::input)
}
