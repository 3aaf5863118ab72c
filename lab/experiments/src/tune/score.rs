//! What a pipeline comes to on several traces.

use serde::{Deserialize, Serialize};
use vattention_core::Backend;
use vattention_trace::{Layout, Trace};

use super::rank::RankPlace;
use crate::density::density_on;
use crate::metrics::ViolationCount;
use crate::{Entry, Error, Result, Results, TraceSettings, chosen_layers, compare};

/// Traces, and the layers and queries of them.
#[derive(Clone, Copy, Debug)]
pub struct TuningTraces<'a> {
    /// At least one.
    pub traces: &'a [Trace],
    /// Layers and queries of each; no dump is made.
    pub settings: &'a TraceSettings,
}

/// What a pipeline came to: means over the rows of all traces.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningScore {
    /// Query heads, times queries, times layers, times traces.
    pub rows: usize,
    /// Share of the visible tokens that the query heads of a KV head read together.
    pub density: f64,
    /// `|out − exact| / |exact|`.
    pub error: f64,
    /// Attention of what was read for certain, relative to that of the best as many.
    pub recall: f64,
    /// Bytes per token that selectors keep beside a KV head's keys and values.
    pub index_bytes: f64,
    /// Violations of the promise; `None` if nothing is promised.
    pub violations: Option<ViolationCount>,
}

impl TuningScore {
    pub(crate) fn of(
        entry: &Entry,
        texts: TuningTraces<'_>,
        backend: &dyn Backend,
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
            let found = compare(
                std::slice::from_ref(entry),
                trace,
                backend,
                texts.settings,
                &Results::default(),
                &|_, _| (),
            )?;
            let one = &found.0.pipelines[0];
            all.add(&Self {
                rows: rows(texts, trace)?,
                density: one.density,
                error: one.output_error.mean,
                recall: one.recall,
                index_bytes: one.index_bytes_per_token,
                violations: one.guarantee.map(|guarantee| guarantee.violations),
            });
        }
        Ok(all)
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> RankPlace {
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

/// What a pipeline reads, mean over the rows of all traces.
pub(crate) fn read(entry: &Entry, texts: TuningTraces<'_>, backend: &dyn Backend) -> Result<f64> {
    let (mut sum, mut all) = (0.0, 0);
    for trace in texts.traces {
        let rows = rows(texts, trace)?;
        sum += density_on(trace, entry, backend, texts.settings)? * rows as f64;
        all += rows;
    }
    Ok(sum / all as f64)
}

fn rows(texts: TuningTraces<'_>, trace: &Trace) -> Result<usize> {
    let layers = chosen_layers(trace, texts.settings)?;
    let rows =
        |(_, layout): (usize, Layout)| texts.settings.count(&layout) * layout.shape.query_heads;
    Ok(layers.into_iter().map(rows).sum())
}

/// How many queries of each layer there are.
pub(super) fn queries_of(texts: TuningTraces<'_>) -> Result<usize> {
    let mut least = usize::MAX;
    for trace in texts.traces {
        for (_, layout) in chosen_layers(trace, texts.settings)? {
            least = least.min(texts.settings.count(&layout));
        }
    }
    Ok(least)
}

/// A pipeline that cannot run, or be made to read a share, is an outcome; a trace that cannot be read is none.
pub(super) fn told<T>(outcome: Result<T>) -> Result<Result<T, String>> {
    match outcome {
        Ok(outcome) => Ok(Ok(outcome)),
        Err(error @ (Error::Pipeline { .. } | Error::Setting { .. } | Error::Classes { .. })) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}
