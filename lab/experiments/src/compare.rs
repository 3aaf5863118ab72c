//! Comparison of pipelines with exact attention on a trace.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ndarray::s;
use serde::{Deserialize, Serialize};
use vattention_core::{
    Attention, Backend, FallBack, Options, Output, Pipeline, PipelineConfig, Site,
    promise::ReferenceRows,
};
use vattention_trace::{Layout, Trace, TraceLayer};

use crate::classes::expect_classes;
use crate::dump::{Dump, DumpPart};
use crate::indexed::IndexedLayers;
use crate::measured::{Comparison, ExactRow, PipelineResult, RowTally};
use crate::{Entry, Error, Exact, Result, Results};

/// Choice of layers and queries of a trace.
#[derive(Clone, Debug, Default)]
pub struct TraceSettings {
    /// Layers of the trace; `None` for all.
    pub layers: Option<Vec<usize>>,
    /// Number of last queries of each layer that are measured; `None` for all. Selectors that learn
    /// from attention also receive the queries before.
    pub queries: Option<usize>,
    /// True to record outputs and selections for [`Dump`].
    pub dump: bool,
    /// True to measure errors relative to attention over the rows of the trace before they are
    /// rounded for the cache; otherwise, errors are relative to the rows that a pipeline's promise
    /// names.
    pub unrounded: bool,
}

/// Result of one pipeline on one layer.
#[derive(Serialize, Deserialize)]
struct LayerResult {
    tally: RowTally,
    dump: Option<DumpPart>,
    /// Time spent computing attention, in seconds.
    seconds: f64,
}

/// Exact attention over a layer of a trace, or over the same layer with the rows of a cache.
struct ExactLayer<'a> {
    layer: &'a TraceLayer,
    /// Rows in (query, query head) order.
    rows: Vec<ExactRow>,
}

/// Compares pipelines with exact attention on a trace. The dump has outputs and selections if
/// `settings.dump` is set. A pipeline on a layer is a unit of `results`. `progress` is called with
/// the number of finished steps and the number of all steps.
///
/// Cost: one pass of exact f64 attention over the trace, and one pass of each pipeline; 4 bytes for
/// each row and visible token.
///
/// # Errors
/// If a setting does not fit the trace, the trace is damaged, or a pipeline cannot run on the
/// trace, and as [`Results::run`].
pub fn compare(
    entries: &[Entry],
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<(Comparison, Dump)> {
    compare_on(&IndexedLayers::default(), entries, trace, backend, settings, results, progress)
}

/// Compares pipelines like [`compare`], with the indexes of earlier runs where possible.
pub(crate) fn compare_on(
    indexed: &IndexedLayers,
    entries: &[Entry],
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<(Comparison, Dump)> {
    let layers = chosen_layers(trace, settings)?;
    entries.iter().try_for_each(|entry| expect_classes(&entry.pipeline, trace, &layers))?;
    let place = |number: usize| (&layers[number / entries.len()], number % entries.len());
    let key = |number: usize| {
        let ((layer, _), i) = place(number);
        let name = &entries[i].pipeline.name;
        let outputs = if settings.dump { ", with outputs" } else { "" };
        format!("layer {layer}, pipeline {} ({name}){outputs}", i + 1)
    };
    let keys: Vec<String> = (0..layers.len() * entries.len()).map(key).collect();
    let results_of_units = results.run_together(&keys, |numbers, sink| {
        let total = numbers.iter().map(|&number| settings.count(&place(number).0.1)).sum();
        let mut done = 0;
        for of_layer in numbers.chunk_by(|a, b| a / entries.len() == b / entries.len()) {
            let (number, layout) = place(of_layer[0]).0;
            let layer = trace.layer(*number).expect("the layer was listed")?;
            let scale = trace.info().scale.unwrap_or(layout.shape.default_scale());
            let count = settings.count(layout);
            let stored = trace.stored_layer(&layer)?;
            let references: Vec<_> =
                of_layer.iter().map(|&unit| settings.reference(&entries[place(unit).1])).collect();
            let exact_layer = |reference: ReferenceRows| {
                let rows = if reference.is_stored() { stored.as_ref() } else { None };
                let layer = rows.unwrap_or(&layer);
                let rows = Exact::rows_with(layer, &layout.shape, scale, count, ExactRow::new);
                ExactLayer { layer, rows }
            };
            let [over_stored, over_unrounded] = [ReferenceRows::Stored, ReferenceRows::Unrounded]
                .map(|rows| references.contains(&rows).then(|| exact_layer(rows)));
            let run = LayerRun { trace, number: *number, layout, layer: &layer, count, indexed };
            for (&unit, reference) in of_layer.iter().zip(references) {
                let exact = if reference.is_stored() { &over_stored } else { &over_unrounded };
                let exact = exact.as_ref().expect("computed for each reference");
                let result =
                    run.measure(&entries[place(unit).1], backend, exact, settings, || {
                        done += 1;
                        progress(done, total);
                    })?;
                sink.put(unit, result)?;
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(summarize(entries, &layers, results_of_units, trace, backend, settings))
}

/// Summarizes the results of pipelines over all layers.
fn summarize(
    entries: &[Entry],
    layers: &[(usize, Layout)],
    results_of_units: Vec<LayerResult>,
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
) -> (Comparison, Dump) {
    let mut tallies: Vec<(RowTally, f64)> = vec![Default::default(); entries.len()];
    let mut dump = Dump::default();
    for (unit, result) in results_of_units.into_iter().enumerate() {
        let LayerResult { tally, dump: part, seconds } = result;
        let (layer, i) = (unit / entries.len(), unit % entries.len());
        let (all, time) = &mut tallies[i];
        all.append(tally);
        *time += seconds;
        if let Some(part) = part {
            dump.insert(i, layers[layer].0, part);
        }
    }
    let measured = |(entry, (tally, seconds)): (&Entry, (RowTally, f64))| -> PipelineResult {
        tally.summarize(entry, seconds, settings.reference(entry))
    };
    let comparison = Comparison {
        trace: trace.path().display().to_string(),
        backend: backend.name().into(),
        pipelines: entries.iter().zip(tallies).map(measured).collect(),
    };
    (comparison, dump)
}

impl TraceSettings {
    /// Rows of the attention that a pipeline's errors are relative to.
    fn reference(&self, entry: &Entry) -> ReferenceRows {
        if self.unrounded {
            return ReferenceRows::Unrounded;
        }
        let goal = entry.pipeline.parts().find_map(PipelineConfig::goal);
        goal.map_or_else(ReferenceRows::default, |goal| goal.reference)
    }

    /// Number of measured queries of a layer.
    pub(crate) fn count(&self, layout: &Layout) -> usize {
        self.queries.unwrap_or(layout.queries)
    }
}

/// Returns the layers of a trace that settings choose, checked against the trace.
///
/// # Errors
/// If a setting does not fit the trace.
pub fn chosen_layers(trace: &Trace, settings: &TraceSettings) -> Result<Vec<(usize, Layout)>> {
    let all: Vec<(usize, Layout)> = trace.layers().collect();
    let chosen = match &settings.layers {
        None => all,
        Some(numbers) => {
            let find = |number: &usize| {
                let found = all.iter().find(|(layer, _)| layer == number).copied();
                found.ok_or_else(|| Error::Setting {
                    field: "layers",
                    reason: format!(
                        "{} has no layer {number}; it has {}",
                        trace.path().display(),
                        list(all.iter().map(|(layer, _)| layer))
                    ),
                })
            };
            let refuse = |reason| Err(Error::Setting { field: "layers", reason });
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
                field: "queries",
                reason: format!(
                    "layer {number} of {0} has {1} queries; expected a number from 1 to {1}, \
                     found {queries}",
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

/// Decode of the last `count` queries of a layer.
pub(crate) struct LayerRun<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) number: usize,
    pub(crate) layout: &'a Layout,
    pub(crate) layer: &'a TraceLayer,
    pub(crate) count: usize,
    pub(crate) indexed: &'a IndexedLayers,
}

impl LayerRun<'_> {
    /// Measures a pipeline against exact attention; `tick` is called after each step.
    fn measure(
        &self,
        entry: &Entry,
        backend: &dyn Backend,
        exact: &ExactLayer<'_>,
        settings: &TraceSettings,
        mut tick: impl FnMut(),
    ) -> Result<LayerResult> {
        let (mut tally, mut time) = (RowTally::default(), Duration::ZERO);
        let mut dump = settings.dump.then(DumpPart::default);
        let mut rows = exact.rows.chunks(self.layout.shape.query_heads);
        let index_bytes = self.attend_all(entry, backend, |output, taken| {
            let exact_rows = rows.next().expect("a row for each query");
            tally.add(&output, exact_rows, exact.layer, &entry.pipeline);
            time += taken;
            if let Some(dump) = &mut dump {
                dump.push(output);
            }
            tick();
        })?;
        tally.add_index(index_bytes, self.layout);
        Ok(LayerResult { tally, dump, seconds: time.as_secs_f64() })
    }

    /// Runs a pipeline, and passes the output of each measured query to `take`, with the time that
    /// the step took; returns the size of the pipeline's index in bytes.
    pub(crate) fn attend_all(
        &self,
        entry: &Entry,
        backend: &dyn Backend,
        mut take: impl FnMut(Output, Duration),
    ) -> Result<usize> {
        let &Self { number, layout, layer, count, .. } = self;
        let refuse = |source| Error::Pipeline { file: entry.file.clone(), layer: number, source };
        let unmeasured = layout.queries - count;
        let learns = || needs_feedback(&entry.pipeline, number, layout).map_err(refuse);
        let first = if unmeasured > 0 && learns()? { 0 } else { unmeasured };
        let options = Options {
            storage: layout.storage,
            soft_cap: layer.soft_cap,
            sink_logits: layer.sink_logits.as_deref().map(Into::into),
            first_step: first as u32,
            scale: self.trace.info().scale,
            return_selection: true,
            // The pipeline's own selection is measured, even where reading everything is faster.
            fall_back: FallBack::Never,
            ..Options::default()
        };
        let start = || load(backend, &entry.pipeline, number, layout, layer, &options);
        let at = (self.trace.path().to_owned(), number, first);
        let mut attention = self.indexed.start(at, &entry.pipeline, start).map_err(refuse)?;
        for query in first..layout.queries {
            let start = Instant::now();
            let output = attend(&mut *attention, layer, query);
            let output = output.map_err(|error| refuse(with_query_index(error, query)))?;
            if query >= unmeasured {
                take(output, start.elapsed());
            }
        }
        Ok(attention.index_bytes())
    }
}

/// Returns true if a selector of the pipeline learns from the attention of earlier queries.
fn needs_feedback(
    pipeline: &Arc<PipelineConfig>,
    layer: usize,
    layout: &Layout,
) -> vattention_core::Result<bool> {
    let site = Site { seed: pipeline.seed, sequence: 0, layer, kv_head: 0, shape: layout.shape };
    Ok(Pipeline::new(pipeline, site)?.needs_feedback())
}

/// Starts a sequence with the layer's tokens. The prompt's queries are observed before the tokens
/// after the prompt are appended.
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
    let append = |attention: &mut dyn Attention, tokens: Range<usize>| {
        let rows = s![.., tokens.clone(), ..];
        let (keys, values) = (layer.keys.slice(rows), layer.values.slice(rows));
        attention.append_rows(keys.into(), values.into(), layer.classes_of(tokens))
    };
    append(&mut *attention, 0..end)?;
    if let Some(prompt) = &layer.prompt {
        attention.observe(prompt.view())?;
    }
    if end < layout.tokens {
        append(&mut *attention, end..layout.tokens)?;
    }
    Ok(attention)
}

/// Computes attention for one query of the layer.
fn attend(
    attention: &mut dyn Attention,
    layer: &TraceLayer,
    query: usize,
) -> vattention_core::Result<Output> {
    let visible = layer.visible.as_ref().map(|visible| &visible[query..=query]);
    attention.attend(layer.queries.slice(s![.., query..=query, ..]), visible)
}

/// Replaces the query's index in an error about a call with a single query by its index in the
/// layer.
fn with_query_index(mut error: vattention_core::Error, query: usize) -> vattention_core::Error {
    if let vattention_core::Error::Number { index, .. } = &mut error
        && let Some(place) = index.get_mut(1)
    {
        *place = query;
    }
    error
}
