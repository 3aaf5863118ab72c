//! `pareto`: error against density of pipelines, each with and without a sample of the residual.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use vattention_core::{Backend, Estimator, Fraction, PipelineConfig};
use vattention_estimators::Ratio;
use vattention_trace::Trace;

use super::options::PromiseOptions;
use crate::{Comparison, Entry, Error, Result, Results, TraceSettings, compare};

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Pareto {
    /// Results of the pipelines.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// True for each pipeline on the Pareto front of density and mean error.
    pub front: Vec<bool>,
}

/// Compares the pipelines of `entries`, and a variant of each: without its sample if it samples,
/// otherwise with a sample by `ratio` at `epsilon` and `delta`. Among pipelines that differ only by
/// name, only the first is measured. `progress` is called as by
/// [`compare`].
///
/// # Errors
/// If a setting does not fit the trace, the trace is damaged, or a pipeline cannot run on the
/// trace.
pub fn pareto(
    entries: &[Entry],
    &PromiseOptions { epsilon, delta }: &PromiseOptions,
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Pareto> {
    let mut all: Vec<Entry> = Vec::new();
    let mut known: Vec<Value> = Vec::new();
    for entry in entries {
        for variant in variants(entry, epsilon, delta) {
            let nameless = nameless(&variant)?;
            if !known.contains(&nameless) {
                known.push(nameless);
                all.push(variant);
            }
        }
    }
    let (comparison, _) = compare(&all, trace, backend, settings, results, progress)?;
    let front = comparison.front();
    Ok(Pareto { comparison, front })
}

/// Returns a pipeline and its variant with a sample, or without its sample. Pipelines without
/// selectors, with a selector that draws, or with settings by layer have no variant.
fn variants(entry: &Entry, epsilon: Fraction, delta: Fraction) -> Vec<Entry> {
    let config = &entry.pipeline;
    let draws_itself = config.draws() && config.estimator.is_none();
    if config.selectors.is_empty() || draws_itself || !config.layers.is_empty() {
        return vec![entry.clone()];
    }
    let other = if config.estimator.is_some() {
        let name = format!("{}, no sample", config.name);
        PipelineConfig { name, sampler: None, estimator: None, ..(**config).clone() }
    } else {
        let name = format!("{} + ratio", config.name);
        let ratio: Box<dyn Estimator> = Box::new(Ratio::new(epsilon, delta));
        PipelineConfig { name, estimator: Some(ratio), ..(**config).clone() }
    };
    vec![entry.clone(), Entry { pipeline: Arc::new(other), ..entry.clone() }]
}

/// Serializes a pipeline without its name.
fn nameless(entry: &Entry) -> Result<Value> {
    let pipeline = PipelineConfig { name: String::new(), ..(*entry.pipeline).clone() };
    serde_json::to_value(pipeline).map_err(|error| {
        let reason = format!("{}: {error}", entry.file);
        Error::Setting { field: "config", reason }
    })
}
