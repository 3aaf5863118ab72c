//! Dense attention beside a sequence that a pipeline answers: what each row is measured against as it comes.

use std::sync::Arc;

use ndarray::{Array1, ArrayView1, ArrayView3, Axis, concatenate, s};
use vattention_core::{Attention, Backend, Options, PipelineConfig, Result, RowsView, Shape};

use crate::Exact;

/// The same tokens as a pipeline's sequence, attended to densely, as far as a backend knows exact attention.
#[allow(missing_debug_implementations)]
pub struct DenseBeside {
    attention: Box<dyn Attention>,
    /// Whether each value has its length over `√value_dim` as one more number, no larger than its
    /// largest: what attention makes of these is `Σ e |v| / D`, which a floor is a share of.
    lengths: bool,
}

impl DenseBeside {
    /// Beside a sequence that `backend` starts by `pipeline`, before any token has arrived.
    ///
    /// # Errors
    /// A shape or option that cannot work, by name.
    pub fn start(
        backend: &dyn Backend,
        pipeline: &PipelineConfig,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Self> {
        let lengths = pipeline.promise().is_some_and(|promise| promise.floor.is_some());
        let value_dim = shape.value_dim + usize::from(lengths);
        let shape = Shape { value_dim, ..shape };
        Ok(Self { attention: backend.start(&Arc::default(), layer, shape, options)?, lengths })
    }

    /// As [`Attention::append_rows`].
    ///
    /// # Errors
    /// As there.
    pub fn append(&mut self, keys: RowsView<'_>, values: RowsView<'_>) -> Result<()> {
        if !self.lengths {
            return self.attention.append(keys, values);
        }
        let mean_square = |value: ArrayView1<'_, f32>| {
            let squares = value.iter().map(|&x| f64::from(x).powi(2));
            squares.sum::<f64>() / value.len() as f64
        };
        let values = values.to_f32();
        let lengths = values.map_axis(Axis(2), |value| mean_square(value).sqrt() as f32);
        let lengths = lengths.insert_axis(Axis(2));
        let values = concatenate(Axis(2), &[values.view(), lengths.view()])
            .expect("lengths are of the same heads and tokens");
        self.attention.append(keys, values.view())
    }

    /// Exact attention as far as the backend knows it, in (query, query head) order.
    ///
    /// # Errors
    /// As [`Attention::attend`].
    pub fn attend(
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

    /// As [`Attention::truncate`].
    ///
    /// # Errors
    /// As there.
    pub fn truncate(&mut self, tokens: usize) -> Result<()> {
        self.attention.truncate(tokens)
    }

    /// As [`Attention::fork`].
    ///
    /// # Errors
    /// As there.
    pub fn fork(&self, sequence: Option<u32>) -> Result<Self> {
        Ok(Self { attention: self.attention.fork(sequence)?, lengths: self.lengths })
    }
}
