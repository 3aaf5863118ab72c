//! Dense attention to the same sequence as a pipeline: the reference for the error of each row.

use std::sync::Arc;

use ndarray::{ArrayView3, s};
use vattention_core::{
    Attention, Backend, Options, Result, RowsView, Shape, engine::SequencePoint,
};

use crate::Exact;

/// Dense attention to the tokens of a pipeline's sequence, with the accuracy of a backend.
#[allow(missing_debug_implementations)]
pub struct DenseBeside(Box<dyn Attention>);

impl DenseBeside {
    /// Starts an empty sequence on `backend`.
    ///
    /// # Errors
    /// If the backend does not support the shape or an option; the error names it.
    pub fn start(
        backend: &dyn Backend,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Self> {
        Ok(Self(backend.start(&Arc::default(), layer, shape, options)?))
    }

    /// Appends keys and values, as [`Attention::append_rows`] does.
    ///
    /// # Errors
    /// Same as [`Attention::append_rows`].
    pub fn append(&mut self, keys: RowsView<'_>, values: RowsView<'_>) -> Result<()> {
        self.0.append(keys, values)
    }

    /// Computes dense attention, in (query, query head) order.
    ///
    /// # Errors
    /// Same as [`Attention::attend`].
    pub fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Vec<Exact>> {
        let output = self.0.attend(queries, visible)?;
        let (heads, queries, _) = output.out.dim();
        let row = |query: usize, head: usize| Exact {
            output: output.out.slice(s![head, query, ..]).mapv(f64::from),
            log_denominator: f64::from(output.log_denominator[[head, query]]),
        };
        Ok((0..queries)
            .flat_map(|query| (0..heads).map(move |head| (query, head)))
            .map(|(query, head)| row(query, head))
            .collect())
    }

    /// Returns to an earlier point, as [`Attention::rewind`] does. Dense attention accepts the
    /// points of any pipeline.
    ///
    /// # Errors
    /// Same as [`Attention::rewind`].
    pub fn rewind(&mut self, to: &SequencePoint) -> Result<()> {
        self.0.rewind(to)
    }

    /// Truncates the sequence, as [`Attention::truncate`] does.
    ///
    /// # Errors
    /// Same as [`Attention::truncate`].
    pub fn truncate(&mut self, tokens: usize) -> Result<()> {
        self.0.truncate(tokens)
    }

    /// Copies the sequence, as [`Attention::fork`] does.
    ///
    /// # Errors
    /// Same as [`Attention::fork`].
    pub fn fork(&self, sequence: Option<u32>) -> Result<Self> {
        Ok(Self(self.0.fork(sequence)?))
    }
}
