//! Pipelines as commands are given them, and those that are left out because they cannot run.

mod loading;

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use vattention::config::file_advice;
use vattention::experiments::{
    Entry, Results, TraceSettings, at_densities, at_epsilon, chosen_layers, expect_classes,
};
use vattention::trace::Trace;
use vattention::{Backend, Fraction, Options, PipelineConfig, Shape};

use crate::fail::note;
use crate::numbers::fraction;
use crate::{Failure, progress};

pub(crate) use loading::{Changes, Loaded};

/// Pipelines, changed or made to read a share of the tokens.
#[derive(Debug, clap::Args)]
pub(crate) struct PipelineArgs {
    /// Pipeline files, or names of built-in pipelines.
    #[arg(required = true)]
    pub(crate) configs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) changes: Changes,
    #[command(flatten)]
    pub(crate) variations: Variations,
}

/// What each pipeline is run with, one after the other.
#[derive(Debug, clap::Args)]
pub(crate) struct Variations {
    /// Shares of the tokens, between commas, that each pipeline is made to read, sink and window
    /// counted: by its epsilon if it promises something, else by mass or sizes. A dense pipeline
    /// stays as it is. By default, pipelines run as they stand.
    #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "SHARES")]
    pub(crate) density: Vec<Fraction>,
    /// More pipeline files, which stay as they stand beside `--density`.
    #[arg(long, requires = "density", num_args = 1.., value_name = "FILE")]
    pub(crate) as_they_stand: Vec<PathBuf>,
    /// Epsilons, between commas: a pipeline that promises one runs with each of them.
    #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "EPSILONS")]
    #[arg(conflicts_with = "density")]
    epsilons: Vec<Fraction>,
}

impl PipelineArgs {
    /// Loads the pipelines; those that cannot be used here are left out.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        self.variations.load(&self.configs, &self.changes)
    }

    /// Those that can run on a trace, at each density.
    pub(crate) fn lineup(
        &self,
        lineup: Lineup<Entry>,
        trace: &Trace,
        backend: &dyn Backend,
        settings: &TraceSettings,
        results: &Results,
    ) -> Result<Lineup<Entry>, Failure> {
        let fitting = lineup.fitting(&shapes(trace, settings)?, backend)?;
        let layers = chosen_layers(trace, settings)?;
        let classed =
            |entry: Entry| expect_classes(&entry.pipeline, trace, &layers).map(|()| vec![entry]);
        let fitting = fitting.each(classed)?;
        self.variations.make(
            fitting,
            |entry| entry,
            |searches, progress| {
                at_densities(searches, trace, backend, settings, results, progress)
            },
        )
    }
}

impl Variations {
    /// Loads pipelines with each epsilon, and those whose settings stay.
    pub(crate) fn load(&self, paths: &[PathBuf], changes: &Changes) -> Result<Loaded, Failure> {
        if let Some(both) = self.as_they_stand.iter().find(|path| paths.contains(path)) {
            let both = both.display();
            let reason = "it is among the pipelines that read a share; expected a file once";
            return Err(Failure::input(format!("--as-they-stand: {both}: {reason}")));
        }
        let mut loaded = changes.load(&[paths, &self.as_they_stand].concat())?;
        let lineup = &mut loaded.lineup;
        lineup.run = lineup.run.drain(..).flat_map(|entry| self.at_epsilons(entry)).collect();
        Ok(loaded)
    }

    /// A pipeline with each epsilon, or as it stands if there is none to set.
    fn at_epsilons(&self, entry: Entry) -> Vec<Entry> {
        let at = |&epsilon| {
            let mut pipeline = at_epsilon(&entry.pipeline, epsilon)?;
            let own = Arc::get_mut(&mut pipeline).expect("nobody else holds what was just made");
            own.name = format!("{}, epsilon {}", own.name, epsilon.get());
            Some(Entry { pipeline, file: entry.file.clone(), set: None })
        };
        let varied: Vec<Entry> = self.epsilons.iter().filter_map(at).collect();
        if varied.is_empty() { vec![entry] } else { varied }
    }

    /// Whether a pipeline stays as it stands: without a density, if it is dense, or if that was said.
    pub(crate) fn leave(&self, entry: &Entry) -> bool {
        let said = |path: &PathBuf| path.display().to_string() == entry.file;
        self.density.is_empty() || entry.pipeline.is_dense() || self.as_they_stand.iter().any(said)
    }

    /// Each pipeline at each density, as `make` makes all of them, or as it stands.
    pub(crate) fn make<T, E>(
        &self,
        lineup: Lineup<Entry>,
        stand: impl Fn(Entry) -> T,
        make: impl FnOnce(
            &[(&Entry, Fraction)],
            &dyn Fn(usize, usize),
        ) -> Result<Vec<Result<T, String>>, E>,
    ) -> Result<Lineup<T>, Failure>
    where
        Failure: From<E>,
    {
        let bar = progress::bar("densities");
        let varied = lineup.run.iter().filter(|entry| !self.leave(entry));
        let searches: Vec<(&Entry, Fraction)> = varied
            .flat_map(|entry| self.density.iter().map(move |&share| (entry, share)))
            .collect();
        let made = make(&searches, &|done, total| progress::show(&bar, done, total));
        bar.finish_and_clear();
        let mut made = made?.into_iter();
        lineup.each(|entry| {
            if self.leave(&entry) {
                return Ok(vec![stand(entry)]);
            }
            let own: Vec<Result<T, String>> = made.by_ref().take(self.density.len()).collect();
            own.into_iter().collect()
        })
    }
}

/// The pipelines that can run, and those that cannot.
pub(crate) struct Lineup<T> {
    pub(crate) run: Vec<T>,
    left_out: Vec<LeftOut>,
}

/// A pipeline that cannot run.
#[derive(Debug, Serialize)]
struct LeftOut {
    #[serde(rename = "pipeline")]
    name: String,
    file: String,
    reason: String,
}

impl Lineup<Entry> {
    /// The pipelines that run.
    pub(crate) fn pipelines(&self) -> impl Iterator<Item = &PipelineConfig> {
        self.run.iter().map(|entry| &*entry.pipeline)
    }

    /// Leaves out what cannot run on some of the layers.
    pub(crate) fn fitting(
        self,
        layers: &[(usize, Shape)],
        backend: &dyn Backend,
    ) -> Result<Self, Failure> {
        self.each(|entry| fits(&entry, layers, backend).map(|()| vec![entry]))
    }

    /// What `make` makes of each pipeline. Those of which it makes nothing are left out, and it is said
    /// why; it is an error if they all are.
    pub(crate) fn each<T, E: Display>(
        self,
        mut make: impl FnMut(Entry) -> Result<Vec<T>, E>,
    ) -> Result<Lineup<T>, Failure> {
        let mut lineup = Lineup { run: Vec::new(), left_out: self.left_out };
        let before = lineup.left_out.len();
        for entry in self.run {
            let (name, file) = (entry.pipeline.name.clone(), entry.file.clone());
            match make(entry) {
                Ok(made) => lineup.run.extend(made),
                Err(error) => {
                    lineup.left_out.push(LeftOut { name, file, reason: error.to_string() });
                }
            }
        }
        let line = |one: &LeftOut| format!("{}: {}", one.file, one.reason);
        let new: Vec<String> = lineup.left_out[before..].iter().map(line).collect();
        if lineup.run.is_empty() && !new.is_empty() {
            return Err(Failure::all(&new));
        }
        for line in &new {
            note(&format!("left out: {line}"));
        }
        Ok(lineup)
    }
}

impl<T> Lineup<T> {
    /// What was found, with what was left out, for JSON.
    pub(crate) fn told<'a, R: Serialize>(&'a self, found: &'a R) -> impl Serialize + 'a {
        Told { found, left_out: &self.left_out }
    }
}

/// Results, and what they lack.
#[derive(Serialize)]
struct Told<'a, R> {
    #[serde(flatten)]
    found: &'a R,
    left_out: &'a [LeftOut],
}

/// Builds a pipeline for layers, or says why it cannot run there.
pub(crate) fn fits(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), String> {
    layers.iter().try_for_each(|&(layer, shape)| {
        let started = backend.start(&entry.pipeline, layer, shape, &Options::default());
        started.map(drop).map_err(|error| {
            let reason = format!("on layer {layer}: {error}");
            // A file that holds other things than expected may be right, and the pipeline wrong.
            let lacks = error.to_string().contains("there is no ");
            match file_advice(&entry.pipeline, &reason).filter(|_| lacks) {
                Some(advice) => format!("{reason}; {advice}"),
                None => reason,
            }
        })
    })
}

/// Builds a pipeline for all layers of a model, or returns why it cannot run there. A pipeline that
/// names layers that the model does not have cannot run.
#[cfg(feature = "models")]
pub(crate) fn fits_model(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), String> {
    entry.pipeline.expect_layers(layers.len()).map_err(|error| error.to_string())?;
    fits(entry, layers, backend)
}

/// Refuses a pipeline that cannot run on some of the layers.
pub(crate) fn expect_fit(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), Failure> {
    fits(entry, layers, backend)
        .map_err(|reason| Failure::input(format!("{}: {reason}", entry.file)))
}

/// The layers of a trace that settings name, checked against it, and their shapes.
pub(crate) fn shapes(
    trace: &Trace,
    settings: &TraceSettings,
) -> Result<Vec<(usize, Shape)>, Failure> {
    let layers = chosen_layers(trace, settings)?.into_iter();
    Ok(layers.map(|(number, layout)| (number, layout.shape)).collect())
}
