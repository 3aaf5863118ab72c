//! A backend that notes what attention reads, and how far it is from dense attention.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ndarray::{Array1, ArrayView1, ArrayView3, Axis, concatenate, s};
use vattention_core::{
    Attention, Backend, Options, Output, PipelineConfig, Promise, Result, Shape, Target,
};
use vattention_eval::{Bars, Exact, RowError, Violations};

use crate::record::{self, ErrorOf};

/// Runs pipelines on another backend, and shows every attention to a observer.
#[allow(missing_debug_implementations)]
pub struct ObservedBackend<'b, W> {
    backend: &'b dyn Backend,
    /// Whether to attend densely beside.
    dense: bool,
    observer: Arc<Mutex<W>>,
}

/// Is shown every attention.
pub trait Observer: Send + 'static {
    /// One layer has attended.
    fn see(&mut self, attended: &LayerAttended<'_>);
}

/// One layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct LayerAttended<'a> {
    /// The layer's number.
    pub layer: usize,
    /// What its pipeline made.
    pub output: &'a Output,
    /// What is exact, in (query, query head) order, if it was asked for.
    pub exact: Option<&'a [Exact]>,
    /// What the pipeline promises.
    pub promise: Option<&'a Promise>,
}

impl LayerAttended<'_> {
    /// How far each row is from exact attention, in (query, query head) order; empty if that was not
    /// asked for.
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

/// One layer.
struct ObservedAttention<W> {
    layer: usize,
    attention: Box<dyn Attention>,
    dense: Option<Dense>,
    promise: Option<Promise>,
    observer: Arc<Mutex<W>>,
}

/// The same tokens, attended to densely.
struct Dense {
    attention: Box<dyn Attention>,
    /// Whether each value has its length over `√value_dim` as one more number, no larger than its
    /// largest: what attention makes of these is `Σ e |v| / D`, which a floor is a share of.
    lengths: bool,
}

/// Sums over rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
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
    /// With `dense`, the same is attended to densely too, which takes its time and memory.
    pub fn new(backend: &'b dyn Backend, dense: bool, observer: W) -> Self {
        Self { backend, dense, observer: Arc::new(Mutex::new(observer)) }
    }

    /// The observer, who sees nothing as long as this is held.
    pub fn observer(&self) -> MutexGuard<'_, W> {
        locked(&self.observer)
    }
}

fn locked<W>(observer: &Mutex<W>) -> MutexGuard<'_, W> {
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
        let promise = pipeline.promise();
        let lengths = promise.is_some_and(|promise| promise.floor.is_some());
        let value_dim = shape.value_dim + usize::from(lengths);
        let dense_shape = Shape { value_dim, ..shape };
        let dense = || self.backend.start(&Arc::default(), layer, dense_shape, options);
        let dense = self.dense.then(dense).transpose()?;
        let dense = dense.map(|attention| Dense { attention, lengths });
        let attention = self.backend.start(pipeline, layer, shape, options)?;
        let observer = self.observer.clone();
        Ok(Box::new(ObservedAttention { layer, attention, dense, promise, observer }))
    }
}

impl<W: Observer> Attention for ObservedAttention<W> {
    fn append(&mut self, keys: ArrayView3<'_, f32>, values: ArrayView3<'_, f32>) -> Result<()> {
        if let Some(dense) = &mut self.dense {
            dense.append(keys, values)?;
        }
        self.attention.append(keys, values)
    }

    fn observe(&mut self, queries: ArrayView3<'_, f32>) -> Result<()> {
        self.attention.observe(queries)
    }

    fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        let output = self.attention.attend(queries, visible)?;
        let dense = match &mut self.dense {
            Some(dense) => Some(dense.attend(queries, visible)?),
            None => None,
        };
        let (exact, promise) = (dense.as_deref(), self.promise.as_ref());
        let attended = LayerAttended { layer: self.layer, output: &output, exact, promise };
        locked(&self.observer).see(&attended);
        Ok(output)
    }

    fn truncate(&mut self, tokens: usize) -> Result<()> {
        self.attention.truncate(tokens)?;
        self.dense.as_mut().map_or(Ok(()), |dense| dense.attention.truncate(tokens))
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>> {
        let dense = self.dense.as_ref().map(|dense| dense.fork(sequence)).transpose()?;
        let attention = self.attention.fork(sequence)?;
        let (layer, promise, observer) = (self.layer, self.promise, self.observer.clone());
        Ok(Box::new(Self { layer, attention, dense, promise, observer }))
    }

    fn len(&self) -> usize {
        self.attention.len()
    }

    fn index_bytes(&self) -> usize {
        self.attention.index_bytes()
    }
}

impl Observer for Seen {
    fn see(&mut self, attended: &LayerAttended<'_>) {
        self.add(attended.output);
        if attended.exact.is_some() {
            self.compare(attended);
        }
    }
}

impl Seen {
    fn add(&mut self, output: &Output) {
        self.rows += output.rows.len();
        for row in &output.rows {
            self.density += row.density_of_group();
            self.held += usize::from(row.certificate.held);
        }
    }

    /// Compares an output with its exact rows.
    fn compare(&mut self, attended: &LayerAttended<'_>) {
        self.compared = true;
        let LayerAttended { output, promise, .. } = attended;
        let heads = output.out.dim().0;
        for (query, step) in attended.errors().chunks(heads).enumerate() {
            for row in step {
                let error = row.of(Target::Sdpa);
                self.error += error;
                self.largest = self.largest.max(error);
            }
            let certificate = |head: usize| &output.rows[query * heads + head].certificate;
            for (head, row) in step.iter().enumerate() {
                self.bars.add_row(certificate(head), row);
            }
            if let Some(promise) = promise {
                let violations = self.violations.get_or_insert_default();
                let broken = |(head, row): (usize, &RowError)| {
                    !certificate(head).is_bar_alone() && row.exceeds(promise)
                };
                violations.add_step(step.iter().enumerate().map(broken));
            }
        }
    }

    /// Means over rows.
    pub(crate) fn summary(&self) -> record::AttentionSummary {
        let rows = self.rows.max(1) as f64;
        let error =
            ErrorOf { mean: self.error / rows, max: self.largest, violations: self.violations };
        record::AttentionSummary {
            rows: self.rows,
            density: self.density / rows,
            held: self.held,
            bars: self.bars,
            error: self.compared.then_some(error),
        }
    }
}

impl Dense {
    fn append(&mut self, keys: ArrayView3<'_, f32>, values: ArrayView3<'_, f32>) -> Result<()> {
        if !self.lengths {
            return self.attention.append(keys, values);
        }
        let mean_square = |value: ArrayView1<'_, f32>| {
            let squares = value.iter().map(|&x| f64::from(x).powi(2));
            squares.sum::<f64>() / value.len() as f64
        };
        let lengths = values.map_axis(Axis(2), |value| mean_square(value).sqrt() as f32);
        let lengths = lengths.insert_axis(Axis(2));
        let values = concatenate(Axis(2), &[values, lengths.view()])
            .expect("lengths are of the same heads and tokens");
        self.attention.append(keys, values.view())
    }

    /// Exact attention as far as the backend knows it, in (query, query head) order.
    fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Vec<Exact>> {
        let output = self.attention.attend(queries, visible)?;
        let (heads, queries, numbers) = output.out.dim();
        let value_dim = numbers - usize::from(self.lengths);
        let row = |query: usize, head: usize| {
            let all: Array1<f64> = output.out.slice(s![head, query, ..]).mapv(f64::from);
            let length = if self.lengths { all[value_dim] } else { 0.0 };
            Exact {
                output: all.slice(s![..value_dim]).to_owned(),
                log_denominator: f64::from(output.log_denominator[[head, query]]),
                mean_norm_v: (value_dim as f64).sqrt() * length,
            }
        };
        Ok((0..queries)
            .flat_map(|query| (0..heads).map(move |head| (query, head)))
            .map(|(query, head)| row(query, head))
            .collect())
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Self> {
        Ok(Self { attention: self.attention.fork(sequence)?, lengths: self.lengths })
    }
}

#[cfg(test)]
mod tests;
