//! A backend that reports each attention to an observer, with dense attention for comparison.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ndarray::{ArrayView3, s};
use vattention_core::{
    Attention, Backend, Options, Output, PipelineConfig, Promise, Result, RowsView, Shape, Target,
    TokenClass,
    engine::{SequencePoint, Wrapper, wrap},
};
use vattention_experiments::{Bars, DenseBeside, Exact, RowError, Violations};
use vattention_llm::SLIDING_LAYER;

use crate::record::{self, RowErrorSummary};

/// Backend that runs pipelines on another backend, and reports the attention of layers that follow
/// them to an observer; sliding layers of a model are not observed.
#[allow(missing_debug_implementations)]
pub struct ObservedBackend<'b, W> {
    backend: &'b dyn Backend,
    /// True to compute dense attention as well.
    dense: bool,
    observer: Arc<Mutex<W>>,
}

/// Observer of attention.
pub trait Observer: Send + 'static {
    /// Handles the attention of one layer in one call.
    fn observe(&mut self, attended: &LayerAttention<'_>);
}

/// Attention of one layer in one call.
#[derive(Clone, Copy, Debug)]
pub struct LayerAttention<'a> {
    /// Number of the layer.
    pub layer: usize,
    /// Output of the pipeline.
    pub output: &'a Output,
    /// Dense attention, in (query, query head) order, if it is computed.
    pub exact: Option<&'a [Exact]>,
    /// Promise of the pipeline.
    pub promise: Option<&'a Promise>,
}

impl LayerAttention<'_> {
    /// Errors of the rows against dense attention, in (query, query head) order; empty if dense
    /// attention is not computed.
    pub fn errors(&self) -> Vec<RowError> {
        let (heads, ..) = self.output.out.dim();
        let error = |(row, exact): (usize, &Exact)| {
            let (query, head) = (row / heads, row % heads);
            let log_denominator = f64::from(self.output.log_denominator[[head, query]]);
            RowError::new(self.output.out.slice(s![head, query, ..]), log_denominator, exact)
        };
        self.exact.unwrap_or_default().iter().enumerate().map(error).collect()
    }
}

/// Wrapper of one layer's attention.
struct AttentionObserver<W> {
    layer: usize,
    dense: Option<DenseBeside>,
    promise: Option<Promise>,
    observer: Arc<Mutex<W>>,
}

/// Sums over the rows of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ObservedSums {
    rows: usize,
    density: f64,
    held: usize,
    error: f64,
    largest: f64,
    compared: bool,
    violations: Option<Violations>,
    bars: Bars,
}

impl<'b, W: Observer> ObservedBackend<'b, W> {
    /// Wraps a backend. With `dense`, dense attention is computed as well, which takes additional
    /// time and memory.
    pub fn new(backend: &'b dyn Backend, dense: bool, observer: W) -> Self {
        Self { backend, dense, observer: Arc::new(Mutex::new(observer)) }
    }

    /// Locks the observer; attention waits while the guard is held.
    pub fn observer(&self) -> MutexGuard<'_, W> {
        lock(&self.observer)
    }
}

fn lock<W>(observer: &Mutex<W>) -> MutexGuard<'_, W> {
    observer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Observer> Backend for ObservedBackend<'_, W> {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn summary(&self) -> &str {
        self.backend.summary()
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        if pipeline.name == SLIDING_LAYER {
            return self.backend.start(pipeline, layer, shape, options);
        }
        let promise = pipeline.promise();
        let dense = || DenseBeside::start(self.backend, layer, shape, options);
        let dense = self.dense.then(dense).transpose()?;
        let attention = self.backend.start(pipeline, layer, shape, options)?;
        let observer = self.observer.clone();
        let wrapper = AttentionObserver { layer, dense, promise, observer };
        Ok(wrap(attention, wrapper))
    }
}

impl<W: Observer> Wrapper for AttentionObserver<W> {
    fn append_rows(
        &mut self,
        inner: &mut dyn Attention,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        if let Some(dense) = &mut self.dense {
            dense.append(keys, values)?;
        }
        inner.append_rows(keys, values, classes)
    }

    fn attend(
        &mut self,
        inner: &mut dyn Attention,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        let output = inner.attend(queries, visible)?;
        let dense = match &mut self.dense {
            Some(dense) => Some(dense.attend(queries, visible)?),
            None => None,
        };
        let (exact, promise) = (dense.as_deref(), self.promise.as_ref());
        let attended = LayerAttention { layer: self.layer, output: &output, exact, promise };
        lock(&self.observer).observe(&attended);
        Ok(output)
    }

    fn truncate(&mut self, inner: &mut dyn Attention, tokens: usize) -> Result<()> {
        inner.truncate(tokens)?;
        self.dense.as_mut().map_or(Ok(()), |dense| dense.truncate(tokens))
    }

    fn rewind(&mut self, inner: &mut dyn Attention, to: &SequencePoint) -> Result<()> {
        inner.rewind(to)?;
        self.dense.as_mut().map_or(Ok(()), |dense| dense.rewind(to))
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Self> {
        let dense = self.dense.as_ref().map(|dense| dense.fork(sequence)).transpose()?;
        Ok(Self { dense, observer: self.observer.clone(), ..*self })
    }
}

impl Observer for ObservedSums {
    fn observe(&mut self, attended: &LayerAttention<'_>) {
        self.add(attended.output);
        if attended.exact.is_some() {
            self.compare(attended);
        }
    }
}

impl ObservedSums {
    fn add(&mut self, output: &Output) {
        self.rows += output.rows.len();
        for row in &output.rows {
            self.density += row.density_of_group();
            self.held += usize::from(row.certificate.held);
        }
    }

    /// Compares an output with dense attention.
    fn compare(&mut self, attended: &LayerAttention<'_>) {
        self.compared = true;
        let LayerAttention { output, promise, .. } = attended;
        let heads = output.out.dim().0;
        for (query, step) in attended.errors().chunks(heads).enumerate() {
            for row in step {
                let error = row.relative(Target::Sdpa);
                self.error += error;
                self.largest = self.largest.max(error);
            }
            let certificate = |head: usize| &output.rows[query * heads + head].certificate;
            for (head, row) in step.iter().enumerate() {
                self.bars.add_row(certificate(head), row);
            }
            if let Some(promise) = promise {
                let violations = self.violations.get_or_insert_default();
                let violated =
                    |(head, row): (usize, &RowError)| row.violates(promise, certificate(head));
                violations.add_step(step.iter().enumerate().map(violated));
            }
        }
    }

    /// Summarizes the rows by means.
    pub(crate) fn summary(&self) -> record::AttentionSummary {
        let rows = self.rows as f64;
        let error = RowErrorSummary {
            mean: self.error / rows,
            max: self.largest,
            violations: self.violations,
        };
        record::AttentionSummary {
            rows: self.rows,
            density: (self.rows > 0).then(|| self.density / rows),
            held: self.held,
            bars: self.bars,
            error: self.compared.then_some(error),
        }
    }
}

#[cfg(test)]
mod tests;
