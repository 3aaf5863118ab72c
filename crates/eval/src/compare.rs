//! Pipelines against exact attention on a trace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ndarray::s;
use serde::Serialize;
use vattention_core::{
    Attention, Backend, Kind, Options, Output, PipelineConfig, Promise, RowReport, Shape, Target,
};

use crate::dump::Dump;
use crate::errors::{ErrorSummary, MeanMax, RowError};
use crate::{Error, Exact, Layer, Layout, Result, Trace};

/// What to compare on.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Layers of the trace; `None`: all.
    pub layers: Option<Vec<usize>>,
    /// How many of each layer's queries, the last ones; `None`: all.
    pub queries: Option<usize>,
    /// Whether to keep outputs and selections for [`Dump`].
    pub dump: bool,
}

/// How pipelines fared on a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The trace's file, as given.
    pub trace: String,
    /// The backend's name.
    pub backend: String,
    /// One entry per pipeline, in the order given.
    pub pipelines: Vec<Measured>,
}

/// How one pipeline fared, over all rows of all layers.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The pipeline's name.
    pub name: String,
    /// Its file, as given.
    pub file: String,
    /// Share of visible tokens read.
    pub density: Density,
    /// `|out − exact| / |exact|`.
    pub output_error: ErrorSummary,
    /// `|D^ − D| / D`.
    pub denominator_error: ErrorSummary,
    /// `|N^ − N| / |N|`.
    pub numerator_error: ErrorSummary,
    /// Residual tokens drawn per row; `None` without an estimator.
    pub budget: Option<MeanMax>,
    /// How the promise fared; `None` if there is none.
    pub guarantee: Option<Guarantee>,
    /// Time spent answering queries.
    pub seconds: f64,
}

/// Share of visible tokens read, the base sample included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Density {
    /// By the query heads of a KV head together: what moves through memory.
    pub per_kv_head: MeanMax,
    /// By each query head.
    pub per_query_head: MeanMax,
}

/// How a promise fared.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Guarantee {
    /// What was promised to be within epsilon.
    pub target: Target,
    /// The relative error promised.
    pub epsilon: f64,
    /// The share of rows that may exceed it.
    pub delta: f64,
    /// What the promise rested on, at its weakest.
    pub kind: Kind,
    /// Rows measured.
    pub rows: usize,
    /// Rows whose error of the target exceeds epsilon.
    pub violations: usize,
}

/// A pipeline to measure.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// Its file, as given.
    pub file: String,
}

/// Compares pipelines with exact attention on a trace; what they read is returned too if
/// `settings.dump` asks for it. `progress` is called with the number of steps done and of all.
///
/// Cost: one pass of exact f64 attention over the trace, and one of each pipeline.
///
/// # Errors
/// A setting that does not fit the trace, a damaged trace, or a pipeline that cannot run on it.
pub fn compare(
    entries: &[Entry],
    trace: &Trace,
    backend: &dyn Backend,
    settings: &Settings,
    progress: &dyn Fn(usize, usize),
) -> Result<(Comparison, Dump)> {
    let layers = chosen_layers(trace, settings)?;
    let total = layers.iter().map(|(_, layout)| settings.count(layout) * entries.len()).sum();
    let mut tallies = vec![Tally::default(); entries.len()];
    let mut dump = Dump::default();
    let mut done = 0;
    for (number, layout) in layers {
        let layer = trace.layer(number).expect("the layer was listed")?;
        let scale = trace.info().scale.unwrap_or(1.0 / (layout.shape.head_dim as f32).sqrt());
        let count = settings.count(&layout);
        let exact = Exact::rows(&layer, &layout.shape, scale, count);
        for (i, (entry, tally)) in entries.iter().zip(&mut tallies).enumerate() {
            let refuse =
                |source| Error::Pipeline { file: entry.file.clone(), layer: number, source };
            let options = Options {
                scale: Some(scale),
                storage: layout.storage,
                record: settings.dump,
                first_step: (layout.queries - count) as u32,
                ..Options::default()
            };
            let mut attention = load(backend, &entry.pipeline, number, &layout, &layer, &options)
                .map_err(refuse)?;
            for (t, exact) in exact.chunks(layout.shape.query_heads).enumerate() {
                let start = Instant::now();
                let query = layout.queries - count + t;
                let output = answer(&mut *attention, &layer, query);
                let output = output.map_err(|error| refuse(at_query(error, query)))?;
                tally.add(&output, exact, &layout.shape, start.elapsed());
                dump.push(i, number, output);
                done += 1;
                progress(done, total);
            }
        }
    }
    let pipelines = entries.iter().zip(tallies).map(|(entry, tally)| tally.measured(entry));
    let comparison = Comparison {
        trace: trace.path().display().to_string(),
        backend: backend.name().into(),
        pipelines: pipelines.collect(),
    };
    Ok((comparison, dump))
}

impl Settings {
    /// How many queries of a layer to answer.
    fn count(&self, layout: &Layout) -> usize {
        self.queries.unwrap_or(layout.queries)
    }
}

/// The layers to compare on, checked against the trace.
fn chosen_layers(trace: &Trace, settings: &Settings) -> Result<Vec<(usize, Layout)>> {
    let all: Vec<(usize, Layout)> = trace.layers().collect();
    let chosen = match &settings.layers {
        None => all,
        Some(numbers) => {
            let find = |number: &usize| {
                let found = all.iter().find(|(layer, _)| layer == number).copied();
                found.ok_or_else(|| Error::Setting {
                    option: "--layers",
                    reason: format!(
                        "{} has no layer {number}; it has {}",
                        trace.path().display(),
                        list(all.iter().map(|(layer, _)| layer))
                    ),
                })
            };
            let refuse = |reason| Err(Error::Setting { option: "--layers", reason });
            if numbers.is_empty() {
                return refuse("names no layer; expected at least one".into());
            }
            let twice = |(i, number): &(usize, &usize)| numbers[..*i].contains(number);
            if let Some((_, number)) = numbers.iter().enumerate().find(twice) {
                return refuse(format!("names layer {number} twice; expected different layers"));
            }
            numbers.iter().map(find).collect::<Result<_>>()?
        }
    };
    for (number, layout) in &chosen {
        if layout.queries == 0 {
            let reason = format!("tensor `layers.{number}.queries` holds no queries to compare on");
            return Err(Error::trace(trace.path(), reason));
        }
        let queries = settings.count(layout);
        if queries == 0 || queries > layout.queries {
            return Err(Error::Setting {
                option: "--queries",
                reason: format!(
                    "layer {number} of {} has {} queries; expected 1 to that, got {queries}",
                    trace.path().display(),
                    layout.queries
                ),
            });
        }
    }
    Ok(chosen)
}

fn list(numbers: impl Iterator<Item = impl ToString>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(", ")
}

/// A sequence that holds the layer's tokens and has seen its prompt.
fn load(
    backend: &dyn Backend,
    pipeline: &Arc<PipelineConfig>,
    number: usize,
    layout: &Layout,
    layer: &Layer,
    options: &Options,
) -> vattention_core::Result<Box<dyn Attention>> {
    let mut attention = backend.start(pipeline, number, layout.shape, options)?;
    attention.append(layer.keys.view(), layer.values.view())?;
    if let Some(prompt) = &layer.prompt {
        attention.observe(prompt.view())?;
    }
    Ok(attention)
}

/// Answers one query of the layer.
fn answer(
    attention: &mut dyn Attention,
    layer: &Layer,
    query: usize,
) -> vattention_core::Result<Output> {
    let visible = layer.visible.as_ref().map(|visible| &visible[query..=query]);
    attention.attend(layer.queries.slice(s![.., query..=query, ..]), visible)
}

/// An error about the only query of a call, as one about that query of the layer.
fn at_query(mut error: vattention_core::Error, query: usize) -> vattention_core::Error {
    if let vattention_core::Error::Number { index, .. } = &mut error
        && let Some(place) = index.get_mut(1)
    {
        *place = query;
    }
    error
}

/// What is gathered of one pipeline, row by row.
#[derive(Clone, Default)]
struct Tally {
    errors: Vec<RowError>,
    reports: Vec<RowReport>,
    time: Duration,
}

impl Tally {
    fn add(&mut self, output: &Output, exact: &[Exact], shape: &Shape, time: Duration) {
        for (head, exact) in exact.iter().enumerate().take(shape.query_heads) {
            let log_denominator = f64::from(output.log_denominator[[head, 0]]);
            let out = output.out.slice(s![head, 0, ..]);
            self.errors.push(RowError::new(out, log_denominator, exact));
        }
        self.reports.extend(&output.rows);
        self.time += time;
    }

    fn measured(self, entry: &Entry) -> Measured {
        let reports = &self.reports;
        let summary =
            |error: fn(&RowError) -> f64| ErrorSummary::new(self.errors.iter().map(error));
        let estimator = entry.pipeline.estimator.as_ref();
        Measured {
            name: entry.pipeline.name.clone(),
            file: entry.file.clone(),
            density: Density {
                per_kv_head: MeanMax::new(reports.iter().map(RowReport::density_of_group)),
                per_query_head: MeanMax::new(reports.iter().map(RowReport::density)),
            },
            output_error: summary(|row| row.output),
            denominator_error: summary(|row| row.denominator),
            numerator_error: summary(|row| row.numerator),
            budget: estimator.map(|_| MeanMax::new(reports.iter().map(|r| r.sampled as f64))),
            guarantee: estimator.and_then(|e| e.promise()).map(|promise| self.guarantee(&promise)),
            seconds: self.time.as_secs_f64(),
        }
    }

    fn guarantee(&self, promise: &Promise) -> Guarantee {
        let kinds = self.reports.iter().map(|report| report.certificate.kind);
        Guarantee {
            target: promise.target,
            epsilon: promise.epsilon.get(),
            delta: promise.delta.get(),
            kind: kinds.min().unwrap_or(Kind::None),
            rows: self.errors.len(),
            violations: self.errors.iter().filter(|row| row.exceeds(promise)).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use vattention_core::{Budget, BudgetEstimator, Certificate, SampleStats, typetag};

    #[derive(Debug, Serialize, Deserialize)]
    struct Promising {}

    #[typetag::serde(name = "promising")]
    impl BudgetEstimator for Promising {
        fn budget(&self, _: &SampleStats) -> Budget {
            Budget { tokens: 1, kind: Kind::Asymptotic }
        }
        fn promise(&self) -> Option<Promise> {
            let [epsilon, delta] = [0.25, 0.125].map(|x| x.try_into().expect("a fraction"));
            Some(Promise { target: Target::Denominator, epsilon, delta })
        }
    }

    #[test]
    fn rows_are_counted_as_their_names_say() {
        let report = |certain, sampled, read_by_group, kind| RowReport {
            visible: 100,
            certain,
            sampled,
            read_by_group,
            budget: Some(77),
            certificate: Certificate { promise: None, kind, held: true },
        };
        let error = |denominator| RowError { output: 0.5, denominator, numerator: 0.75 };
        let tally = Tally {
            errors: [0.25, f64::NAN, 0.26].map(error).into(),
            reports: vec![
                report(10, 20, 40, Kind::Exact),
                report(0, 10, 60, Kind::Asymptotic),
                report(0, 30, 80, Kind::Exact),
            ],
            time: Duration::ZERO,
        };
        let estimator: Box<dyn BudgetEstimator> = Box::new(Promising {});
        let pipeline = PipelineConfig { estimator: Some(estimator), ..Default::default() };
        let entry = Entry { pipeline: Arc::new(pipeline), file: "f".into() };
        let got = tally.measured(&entry);
        let close = |got: MeanMax, mean: f64, max: f64| {
            assert!((got.mean - mean).abs() < 1e-12 && (got.max - max).abs() < 1e-12, "{got:?}");
        };
        close(got.density.per_kv_head, 0.6, 0.8);
        close(got.density.per_query_head, 0.7 / 3.0, 0.3);
        close(got.budget.expect("an estimator"), 20.0, 30.0);
        assert_eq!((got.output_error.max, got.numerator_error.max), (0.5, 0.75));
        assert!((got.denominator_error.p50 - 0.26).abs() < 1e-12);
        let guarantee = got.guarantee.expect("a promise");
        assert_eq!((guarantee.epsilon, guarantee.delta), (0.25, 0.125));
        assert_eq!((guarantee.rows, guarantee.violations), (3, 2), "above epsilon, or no number");
        assert_eq!(guarantee.kind, Kind::Asymptotic, "the weakest");
    }
}
