//! Pipelines of a command: loading, variations, and pipelines that are left out because they cannot
//! run.

mod lineup;
mod loading;

use std::path::PathBuf;
use std::sync::Arc;

use vattention::experiments::{
    Entry, Results, TraceSettings, chosen_layers, expect_classes, tune_to_densities, with_epsilon,
};
use vattention::trace::Trace;
use vattention::{Backend, Fraction, Shape};

use crate::fail::Failure;
use crate::numbers::fraction;
use crate::progress;

#[cfg(feature = "models")]
pub(crate) use lineup::fits_model;
pub(crate) use lineup::{Lineup, WithLeftOut, expect_fit, fits};
pub(crate) use loading::{Changes, LoadedPipelines};

/// Pipelines, their changes and their variations.
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

/// Densities or epsilons. Every pipeline runs with each of them.
#[derive(Debug, clap::Args)]
pub(crate) struct Variations {
    /// Shares of the tokens that each pipeline should read, sink and window included, separated by
    /// commas. A search varies the epsilon of a pipeline that makes a promise, and otherwise its
    /// mass or sizes. A dense pipeline stays unchanged. By default, all pipelines run unchanged.
    #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "SHARES")]
    pub(crate) density: Vec<Fraction>,
    /// More pipeline files, which `--density` does not change.
    #[arg(long, requires = "density", num_args = 1.., value_name = "FILE")]
    pub(crate) as_they_stand: Vec<PathBuf>,
    /// Epsilons, separated by commas; a pipeline that promises one runs with each of them.
    #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "EPSILONS")]
    #[arg(conflicts_with = "density")]
    epsilons: Vec<Fraction>,
}

impl PipelineArgs {
    /// Loads the pipelines, and leaves out those that cannot take the changes or whose files are
    /// missing.
    pub(crate) fn load(&self) -> Result<LoadedPipelines, Failure> {
        self.variations.load(&self.configs, &self.changes)
    }

    /// Returns the pipelines that can run on a trace, at each density.
    pub(crate) fn fit_to_trace(
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
        let fitting = fitting.expand(classed)?;
        self.variations.apply_densities(
            fitting,
            |entry| entry,
            |searches, progress| {
                tune_to_densities(searches, trace, backend, settings, results, progress)
            },
        )
    }
}

impl Variations {
    /// Loads pipelines with each epsilon, and those of `--as-they-stand`.
    pub(crate) fn load(
        &self,
        paths: &[PathBuf],
        changes: &Changes,
    ) -> Result<LoadedPipelines, Failure> {
        if let Some(both) = self.as_they_stand.iter().find(|path| paths.contains(path)) {
            let both = both.display();
            let reason =
                "it is among the pipelines that --density changes; expected each file once";
            return Err(Failure::input(format!("--as-they-stand: {both}: {reason}")));
        }
        let mut loaded = changes.load(&[paths, &self.as_they_stand].concat())?;
        let lineup = &mut loaded.lineup;
        lineup.run = lineup.run.drain(..).flat_map(|entry| self.at_epsilons(entry)).collect();
        Ok(loaded)
    }

    /// Returns a pipeline with each epsilon, or the unchanged pipeline if it promises none.
    fn at_epsilons(&self, entry: Entry) -> Vec<Entry> {
        let with_epsilon = |&epsilon| {
            let mut pipeline = with_epsilon(&entry.pipeline, epsilon)?;
            let config = Arc::get_mut(&mut pipeline).expect("a new pipeline has a single owner");
            config.name = format!("{}, epsilon {}", config.name, epsilon.get());
            Some(Entry { pipeline, file: entry.file.clone(), set: None })
        };
        let varied: Vec<Entry> = self.epsilons.iter().filter_map(with_epsilon).collect();
        if varied.is_empty() { vec![entry] } else { varied }
    }

    /// Returns true if densities do not change a pipeline: without a density, if the pipeline is
    /// dense, or if `--as-they-stand` names it.
    fn stays_unchanged(&self, entry: &Entry) -> bool {
        let is_named = |path: &PathBuf| path.display().to_string() == entry.file;
        self.density.is_empty()
            || entry.pipeline.is_dense()
            || self.as_they_stand.iter().any(is_named)
    }

    /// Replaces each pipeline by the results of `search` at each density, or by the result of
    /// `convert` if densities do not change the pipeline.
    pub(crate) fn apply_densities<T, E>(
        &self,
        lineup: Lineup<Entry>,
        convert: impl Fn(Entry) -> T,
        search: impl FnOnce(
            &[(&Entry, Fraction)],
            &dyn Fn(usize, usize),
        ) -> Result<Vec<Result<T, String>>, E>,
    ) -> Result<Lineup<T>, Failure>
    where
        Failure: From<E>,
    {
        let bar = progress::bar("densities");
        let varied = lineup.run.iter().filter(|entry| !self.stays_unchanged(entry));
        let searches: Vec<(&Entry, Fraction)> = varied
            .flat_map(|entry| self.density.iter().map(move |&share| (entry, share)))
            .collect();
        let found = search(&searches, &|done, total| progress::show(&bar, done, total));
        bar.finish_and_clear();
        let mut found = found?.into_iter();
        lineup.expand(|entry| {
            if self.stays_unchanged(&entry) {
                return Ok(vec![convert(entry)]);
            }
            let of_entry: Vec<_> = found.by_ref().take(self.density.len()).collect();
            of_entry.into_iter().collect()
        })
    }
}

/// Returns numbers and shapes of the layers that the settings name.
///
/// # Errors
/// If the trace does not have one of the layers.
pub(crate) fn shapes(
    trace: &Trace,
    settings: &TraceSettings,
) -> Result<Vec<(usize, Shape)>, Failure> {
    let layers = chosen_layers(trace, settings)?.into_iter();
    Ok(layers.map(|(number, layout)| (number, layout.shape)).collect())
}
