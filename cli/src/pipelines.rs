//! Pipelines as commands are given them, and those that are left out because they cannot run.

mod lineup;
mod loading;

use std::path::PathBuf;
use std::sync::Arc;

use vattention::experiments::{
    Entry, Results, TraceSettings, at_densities, at_epsilon, chosen_layers, expect_classes,
};
use vattention::trace::Trace;
use vattention::{Backend, Fraction, Shape};

use crate::fail::Failure;
use crate::numbers::fraction;
use crate::progress;

#[cfg(feature = "models")]
pub(crate) use lineup::fits_model;
pub(crate) use lineup::{Lineup, expect_fit, fits};
pub(crate) use loading::{Changes, LoadedPipelines};

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
    pub(crate) fn load(&self) -> Result<LoadedPipelines, Failure> {
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
    pub(crate) fn load(
        &self,
        paths: &[PathBuf],
        changes: &Changes,
    ) -> Result<LoadedPipelines, Failure> {
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

/// The layers of a trace that settings name, checked against it, and their shapes.
pub(crate) fn shapes(
    trace: &Trace,
    settings: &TraceSettings,
) -> Result<Vec<(usize, Shape)>, Failure> {
    let layers = chosen_layers(trace, settings)?.into_iter();
    Ok(layers.map(|(number, layout)| (number, layout.shape)).collect())
}
