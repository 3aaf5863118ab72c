//! A backend that notes what attention reads, and how far it is from dense attention.

use std::sync::{Arc, Mutex, PoisonError};

use ndarray::{Array1, ArrayView1, ArrayView3, Axis, concatenate, s};
use vattention_core::{
    Attention, Backend, Options, Output, PipelineConfig, Promise, Result, Shape, Target,
};
use vattention_eval::{Exact, RowError, Violations};

use crate::record::{self, ErrorOf};

/// Runs pipelines on another backend, and each layer's attention densely beside.
pub(crate) struct Watched<'b> {
    backend: &'b dyn Backend,
    /// Whether to compare with dense attention.
    errors: bool,
    seen: Arc<Mutex<Seen>>,
}

/// One layer.
struct WatchedAttention {
    attention: Box<dyn Attention>,
    dense: Option<Dense>,
    promise: Option<Promise>,
    seen: Arc<Mutex<Seen>>,
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
}

impl<'b> Watched<'b> {
    pub(crate) fn new(backend: &'b dyn Backend, errors: bool) -> Self {
        Self { backend, errors, seen: Arc::default() }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Watched<'_> {
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
        let dense = self.errors.then(dense).transpose()?;
        let dense = dense.map(|attention| Dense { attention, lengths });
        let attention = self.backend.start(pipeline, layer, shape, options)?;
        Ok(Box::new(WatchedAttention { attention, dense, promise, seen: self.seen.clone() }))
    }
}

impl Attention for WatchedAttention {
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
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.add(&output);
        if let Some(dense) = dense {
            seen.compare(&output, &dense, self.promise.as_ref());
        }
        Ok(output)
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>> {
        let dense = self.dense.as_ref().map(|dense| dense.fork(sequence)).transpose()?;
        let attention = self.attention.fork(sequence)?;
        Ok(Box::new(Self { attention, dense, promise: self.promise, seen: self.seen.clone() }))
    }

    fn len(&self) -> usize {
        self.attention.len()
    }

    fn index_bytes(&self) -> usize {
        self.attention.index_bytes()
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

    /// Compares an output with its exact rows, in (query, query head) order.
    fn compare(&mut self, output: &Output, exact: &[Exact], promise: Option<&Promise>) {
        self.compared = true;
        let heads = output.out.dim().0;
        for (query, exact) in exact.chunks(heads).enumerate() {
            let error = |(head, exact)| {
                let log_denominator = f64::from(output.log_denominator[[head, query]]);
                RowError::new(output.out.slice(s![head, query, ..]), log_denominator, exact)
            };
            let step: Vec<RowError> = exact.iter().enumerate().map(error).collect();
            for row in &step {
                let error = row.of(Target::Sdpa);
                self.error += error;
                self.largest = self.largest.max(error);
            }
            if let Some(promise) = promise {
                let violations = self.violations.get_or_insert_default();
                violations.add_step(step.iter().map(|row| row.exceeds(promise)));
            }
        }
    }

    /// Means over rows.
    pub(crate) fn summary(&self) -> record::Attention {
        let rows = self.rows.max(1) as f64;
        let error =
            ErrorOf { mean: self.error / rows, max: self.largest, violations: self.violations };
        record::Attention {
            rows: self.rows,
            density: self.density / rows,
            held: self.held,
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
