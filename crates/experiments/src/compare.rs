//! Pipelines against exact attention on a trace.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ndarray::s;
use vattention_core::{
    Attention, Backend, FallBack, Options, Output, Pipeline, PipelineConfig, Site,
};
use vattention_trace::{Layout, Trace, TraceLayer};

use crate::dump::Dump;
use crate::measured::{Comparison, ExactRow, Tally};
use crate::{Error, Exact, Result};

/// What to compare on.
#[derive(Clone, Debug, Default)]
pub struct TraceSettings {
    /// Layers of the trace; `None`: all.
    pub layers: Option<Vec<usize>>,
    /// How many of each layer's queries, the last ones; `None`: all. Selectors that learn from
    /// attention are shown those before, too.
    pub queries: Option<usize>,
    /// Whether to keep outputs and selections for [`Dump`].
    pub dump: bool,
}

/// A pipeline to measure.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// Its file, as given.
    pub file: String,
    /// What was set so that it reads a share of the tokens, if that was asked for.
    pub set: Option<String>,
}

/// Compares pipelines with exact attention on a trace; what they read is returned too if
/// `settings.dump` asks for it. `progress` is called with the number of steps done and of all.
///
/// Cost: one pass of exact f64 attention over the trace, and one of each pipeline; 4 bytes for each
/// row and token that it sees.
///
/// # Errors
/// A setting that does not fit the trace, a damaged trace, or a pipeline that cannot run on it.
pub fn compare(
    entries: &[Entry],
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    progress: &dyn Fn(usize, usize),
) -> Result<(Comparison, Dump)> {
    let layers = chosen_layers(trace, settings)?;
    let total = layers.iter().map(|(_, layout)| settings.count(layout) * entries.len()).sum();
    let mut tallies = vec![Tally::default(); entries.len()];
    let mut dump = Dump::default();
    let mut done = 0;
    for (number, layout) in layers {
        let layer = trace.layer(number).expect("the layer was listed")?;
        let scale = trace.info().scale.unwrap_or(layout.shape.default_scale());
        let count = settings.count(&layout);
        let exact = Exact::rows_with(&layer, &layout.shape, scale, count, ExactRow::new);
        let options = Options { scale: Some(scale), return_selection: true, ..Options::default() };
        let answers = Answers { number, layout: &layout, layer: &layer, count, options };
        for (i, (entry, tally)) in entries.iter().zip(&mut tallies).enumerate() {
            let mut rows = exact.chunks(layout.shape.query_heads);
            let index_bytes = answers.of(entry, backend, |output, time| {
                tally.add(&output, rows.next().expect("a row for each query"), &layer, time);
                if settings.dump {
                    dump.push(i, number, output);
                }
                done += 1;
                progress(done, total);
            })?;
            tally.add_index(index_bytes, &layout);
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

impl TraceSettings {
    /// How many queries of a layer to answer.
    pub(crate) fn count(&self, layout: &Layout) -> usize {
        self.queries.unwrap_or(layout.queries)
    }
}

/// The layers of a trace that settings name, checked against it.
///
/// # Errors
/// A setting that does not fit the trace.
pub fn chosen_layers(trace: &Trace, settings: &TraceSettings) -> Result<Vec<(usize, Layout)>> {
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
        trace.expect_queries(*number, layout)?;
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

/// The answers to the last `count` queries of a layer.
pub(crate) struct Answers<'a> {
    pub(crate) number: usize,
    pub(crate) layout: &'a Layout,
    pub(crate) layer: &'a TraceLayer,
    pub(crate) count: usize,
    /// Scale, and whether to record.
    pub(crate) options: Options,
}

impl Answers<'_> {
    /// Gives each answer of a pipeline to `take`, with the time it took; returns the bytes of its
    /// index.
    pub(crate) fn of(
        &self,
        entry: &Entry,
        backend: &dyn Backend,
        mut take: impl FnMut(Output, Duration),
    ) -> Result<usize> {
        let &Self { number, layout, layer, count, .. } = self;
        let refuse = |source| Error::Pipeline { file: entry.file.clone(), layer: number, source };
        let unmeasured = layout.queries - count;
        let learns = || learns(&entry.pipeline, number, layout).map_err(refuse);
        let first = if unmeasured > 0 && learns()? { 0 } else { unmeasured };
        let options = Options {
            storage: layout.storage,
            first_step: first as u32,
            // What the pipeline chose is what is measured.
            fall_back: FallBack::Never,
            ..self.options.clone()
        };
        let mut attention =
            load(backend, &entry.pipeline, number, layout, layer, &options).map_err(refuse)?;
        for query in first..layout.queries {
            let start = Instant::now();
            let output = answer(&mut *attention, layer, query);
            let output = output.map_err(|error| refuse(at_query(error, query)))?;
            if query >= unmeasured {
                take(output, start.elapsed());
            }
        }
        Ok(attention.index_bytes())
    }
}

/// Whether a selector of the pipeline waits for the attention of the queries before.
fn learns(
    pipeline: &Arc<PipelineConfig>,
    layer: usize,
    layout: &Layout,
) -> vattention_core::Result<bool> {
    let site = Site { seed: pipeline.seed, sequence: 0, layer, kv_head: 0, shape: layout.shape };
    Ok(Pipeline::new(pipeline, site)?.needs_feedback())
}

/// A sequence that holds the layer's tokens and has seen its prompt when there were no others.
fn load(
    backend: &dyn Backend,
    pipeline: &Arc<PipelineConfig>,
    number: usize,
    layout: &Layout,
    layer: &TraceLayer,
    options: &Options,
) -> vattention_core::Result<Box<dyn Attention>> {
    let mut attention = backend.start(pipeline, number, layout.shape, options)?;
    let end = layer.prompt_end();
    let part = |tokens: Range<usize>| {
        let tokens = s![.., tokens, ..];
        (layer.keys.slice(tokens), layer.values.slice(tokens))
    };
    let (keys, values) = part(0..end);
    attention.append(keys, values)?;
    if let Some(prompt) = &layer.prompt {
        attention.observe(prompt.view())?;
    }
    if end < layout.tokens {
        let (keys, values) = part(end..layout.tokens);
        attention.append(keys, values)?;
    }
    Ok(attention)
}

/// Answers one query of the layer.
fn answer(
    attention: &mut dyn Attention,
    layer: &TraceLayer,
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
