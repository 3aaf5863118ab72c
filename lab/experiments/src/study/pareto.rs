//! `pareto`: error against density of pipelines, each with a sample of the rest and without.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use vattention_core::{Backend, Estimator, Fraction, PipelineConfig};
use vattention_estimators::Ratio;
use vattention_trace::Trace;

use super::options::PromiseOptions;
use crate::{Comparison, Entry, Error, Result, Results, TraceSettings, compare};

/// What the study found.
#[derive(Clone, Debug, Serialize)]
pub struct Pareto {
    /// How each pipeline fared.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// Of each pipeline, whether none is both as sparse and as near, and better in one of them.
    pub front: Vec<bool>,
}

/// Compares the pipelines of `entries`, those that sample without their sample too, and those that
/// do not with one by `ratio` at `epsilon` and `delta`. Of pipelines that differ in name alone, the
/// first is measured. `progress` as in [`compare`].
///
/// # Errors
/// A setting that does not fit the trace, a damaged trace, or a pipeline that cannot run on it.
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

/// A pipeline as it stands, and with a sample if it has none, or without if it has; only as it
/// stands where it draws itself, or has settings by layer.
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

/// A pipeline as written, without its name.
fn nameless(entry: &Entry) -> Result<Value> {
    let pipeline = PipelineConfig { name: String::new(), ..(*entry.pipeline).clone() };
    serde_json::to_value(pipeline).map_err(|error| {
        let reason = format!("{}: {error}", entry.file);
        Error::Setting { field: "config", reason }
    })
}
