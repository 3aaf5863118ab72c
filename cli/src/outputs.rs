//! What a command writes, checked before the work whose results it holds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use vattention::trace::{check_writable, partial_path, write_beside};

use crate::fail::{Failure, say};
use crate::paths::{check_plot_name, is_standard_output, refuse_dash, same_file};
use crate::provenance::Provenance;

/// What Ctrl-C ends: the command, or at some point only its work, of which it then tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    work_only: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
}

#[cfg(feature = "models")]
impl Interrupt {
    /// From now on the first Ctrl-C is for the one who asks; the next one ends the command.
    pub(crate) fn end_work_only(&self) {
        self.work_only.store(true, Ordering::Relaxed);
    }

    /// Whether the work should end.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Interrupt {
    /// Takes a Ctrl-C, if it is for the work.
    fn take(&self) -> bool {
        let taken = self.work_only.swap(false, Ordering::Relaxed);
        if taken {
            self.asked.store(true, Ordering::Relaxed);
        }
        taken
    }
}

/// Files that results are written to.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Write the results as JSON; `-`: to standard output, in place of the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the results, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

impl OutputArgs {
    /// Files by their options.
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

    /// Draws the results if a plot is wanted, writes them as JSON if that is, and prints `text` unless
    /// the JSON was printed.
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
    check_outputs_unless(&Interrupt::default(), outputs, inputs)
}

/// As [`check_outputs`], for work that can be interrupted by itself.
pub(crate) fn check_outputs_unless(
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
    leave_nothing_half_written(partial.collect(), interrupt.clone())
}

/// Results with their provenance.
#[derive(Serialize)]
struct Document<'a, R> {
    run: Provenance,
    #[serde(flatten)]
    results: &'a R,
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

/// When the command is interrupted, removes what it was filling and exits with 130.
fn leave_nothing_half_written(partial: Vec<PathBuf>, interrupt: Interrupt) -> Result<(), Failure> {
    let clean_up = move || {
        if interrupt.take() {
            return;
        }
        for path in &partial {
            // Most are not there: each exists only while its output is being written.
            let _ = std::fs::remove_file(path);
        }
        crate::interrupt::report();
        std::process::exit(130);
    };
    ctrlc::set_handler(clean_up).map_err(Failure::input)
}
