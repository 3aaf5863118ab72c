//! Measurement of a pipeline on several traces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vattention_core::Backend;
use vattention_trace::{Layout, Trace};

use super::rank::TuningPoint;
use crate::compare::compare_on;
use crate::density;
use crate::indexed::IndexedLayers;
use crate::metrics::ViolationCount;
use crate::{Entry, Error, Result, Results, TraceSettings, chosen_layers};

/// Traces, and the choice of their layers and queries.
#[derive(Clone, Copy, Debug)]
pub struct TuningTraces<'a> {
    /// Traces; at least one.
    pub traces: &'a [Trace],
    /// Layers and queries of each trace; no dump is made.
    pub settings: &'a TraceSettings,
}

/// Measurement of a pipeline: means over the rows of all traces.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TuningScore {
    /// Number of rows: query heads × queries × layers × traces.
    pub rows: usize,
    /// Share of the visible tokens that the query heads of a KV head read together.
    pub density: f64,
    /// `|out − exact| / |exact|`.
    pub error: f64,
    /// Attention weight of the tokens that were read deterministically, relative to that of the
    /// same number of heaviest tokens.
    pub recall: f64,
    /// Size of the selectors' indexes of a KV head, in bytes per token.
    pub index_bytes: f64,
    /// Violations of the promise; `None` if nothing is promised.
    pub violations: Option<ViolationCount>,
}

impl TuningScore {
    pub(crate) fn measure(
        entry: &Entry,
        texts: TuningTraces<'_>,
        backend: &dyn Backend,
        indexed: &IndexedLayers,
    ) -> Result<Self> {
        let mut all = Self {
            rows: 0,
            density: 0.0,
            error: 0.0,
            recall: 0.0,
            index_bytes: 0.0,
            violations: None,
        };
        for trace in texts.traces {
            let (comparison, _) = compare_on(
                indexed,
                std::slice::from_ref(entry),
                trace,
                backend,
                texts.settings,
                &Results::default(),
                &|_, _| (),
            )?;
            let measured = &comparison.pipelines[0];
            all.add(&Self {
                rows: count_rows(texts, trace)?,
                density: measured.density,
                error: measured.output_error.mean,
                recall: measured.recall,
                index_bytes: measured.index_bytes_per_token,
                violations: measured.guarantee.map(|guarantee| guarantee.violations),
            });
        }
        Ok(all)
    }

    /// Point of the ranking.
    pub(crate) fn point(&self) -> TuningPoint {
        (self.density, self.error)
    }

    fn add(&mut self, other: &Self) {
        let rows = (self.rows + other.rows) as f64;
        let mean = |a: f64, b: f64| (a * self.rows as f64 + b * other.rows as f64) / rows;
        *self = Self {
            rows: self.rows + other.rows,
            density: mean(self.density, other.density),
            error: mean(self.error, other.error),
            recall: mean(self.recall, other.recall),
            index_bytes: mean(self.index_bytes, other.index_bytes),
            violations: match (self.violations, other.violations) {
                (Some(one), Some(other)) => Some(ViolationCount {
                    violated: one.violated + other.violated,
                    checked: one.checked + other.checked,
                    ..one
                }),
                (one, other) => one.or(other),
            },
        };
    }
}

/// Measures the density of a pipeline, mean over the rows of all traces.
pub(crate) fn measure_density(
    entry: &Entry,
    texts: TuningTraces<'_>,
    backend: &dyn Backend,
    indexed: &IndexedLayers,
) -> Result<f64> {
    let (mut sum, mut all) = (0.0, 0);
    for trace in texts.traces {
        let rows = count_rows(texts, trace)?;
        sum +=
            density::measure_density(trace, entry, backend, texts.settings, indexed)? * rows as f64;
        all += rows;
    }
    Ok(sum / all as f64)
}

fn count_rows(texts: TuningTraces<'_>, trace: &Trace) -> Result<usize> {
    let layers = chosen_layers(trace, texts.settings)?;
    let rows =
        |(_, layout): (usize, Layout)| texts.settings.count(&layout) * layout.shape.query_heads;
    Ok(layers.into_iter().map(rows).sum())
}

/// Returns the number of queries of each layer; the smallest, if layers differ.
pub(super) fn count_queries(texts: TuningTraces<'_>) -> Result<usize> {
    let mut least = usize::MAX;
    for trace in texts.traces {
        for (_, layout) in chosen_layers(trace, texts.settings)? {
            least = least.min(texts.settings.count(&layout));
        }
    }
    Ok(least)
}

/// Separates refusals of a pipeline, which are results of the search, from errors that end the
/// search, such as an unreadable trace.
pub(super) fn separate_refusal<T>(outcome: Result<T>) -> Result<Result<T, String>> {
    match outcome {
        Ok(outcome) => Ok(Ok(outcome)),
        Err(error @ (Error::Pipeline { .. } | Error::Setting { .. } | Error::Classes { .. })) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}
