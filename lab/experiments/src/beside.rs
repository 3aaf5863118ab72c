//! Dense attention beside a sequence that a pipeline answers: the reference for each row's error.

use std::sync::Arc;

use ndarray::{ArrayView3, s};
use vattention_core::{Attention, Backend, Options, Result, RowsView, Shape};

use crate::Exact;

/// The same tokens as a pipeline's sequence, attended to densely, as far as a backend knows exact attention.
#[allow(missing_debug_implementations)]
pub struct DenseBeside(Box<dyn Attention>);

impl DenseBeside {
    /// Beside a sequence that `backend` starts, before any token has arrived.
    ///
    /// # Errors
    /// A shape or option that cannot work, by name.
    pub fn start(
        backend: &dyn Backend,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Self> {
        Ok(Self(backend.start(&Arc::default(), layer, shape, options)?))
    }

    /// As [`Attention::append_rows`].
    ///
    /// # Errors
    /// As there.
    pub fn append(&mut self, keys: RowsView<'_>, values: RowsView<'_>) -> Result<()> {
        self.0.append(keys, values)
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

    /// As [`Attention::truncate`].
    ///
    /// # Errors
    /// As there.
    pub fn truncate(&mut self, tokens: usize) -> Result<()> {
        self.0.truncate(tokens)
    }

    /// As [`Attention::fork`].
    ///
    /// # Errors
    /// As there.
    pub fn fork(&self, sequence: Option<u32>) -> Result<Self> {
        Ok(Self(self.0.fork(sequence)?))
    }
}
