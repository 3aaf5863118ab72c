//! Wrappers, which add behaviour to the calls of an attention.

use std::ops::Range;
use std::sync::Arc;

use ndarray::ArrayView3;

use crate::{
    Result,
    engine::{Attention, AttentionState, KeyValueRows, Output, SequencePoint},
    pipeline::PipelineConfig,
    step::{RowsView, TokenClass},
};

/// Behaviour that [`wrap`] adds to an inner attention. By default, every call is forwarded
/// unchanged.
pub trait Wrapper: Send + Sized + 'static {
    /// Appends rows; see [`Attention::append_rows`].
    ///
    /// # Errors
    /// Returns the errors of the inner attention.
    fn append_rows(
        &mut self,
        inner: &mut dyn Attention,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        inner.append_rows(keys, values, classes)
    }

    /// Computes attention; see [`Attention::attend`].
    ///
    /// # Errors
    /// Returns the errors of the inner attention.
    fn attend(
        &mut self,
        inner: &mut dyn Attention,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        inner.attend(queries, visible)
    }

    /// Removes tokens; see [`Attention::truncate`].
    ///
    /// # Errors
    /// Returns the errors of the inner attention.
    fn truncate(&mut self, inner: &mut dyn Attention, tokens: usize) -> Result<()> {
        inner.truncate(tokens)
    }

    /// Returns to an earlier point; see [`Attention::rewind`].
    ///
    /// # Errors
    /// Returns the errors of the inner attention.
    fn rewind(&mut self, inner: &mut dyn Attention, to: &SequencePoint) -> Result<()> {
        inner.rewind(to)
    }

    /// Copies the wrapper for a fork of the inner attention.
    ///
    /// # Errors
    /// Returns an error if its state cannot be copied.
    fn fork(&self, sequence: Option<u32>) -> Result<Self>;
}

/// Wraps an attention.
pub fn wrap(inner: Box<dyn Attention>, wrapper: impl Wrapper) -> Box<dyn Attention> {
    Box::new(Wrapped { inner, wrapper })
}

/// An attention and its wrapper.
struct Wrapped<W> {
    inner: Box<dyn Attention>,
    wrapper: W,
}

impl<W: Wrapper> Attention for Wrapped<W> {
    fn append_rows(
        &mut self,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        self.wrapper.append_rows(&mut *self.inner, keys, values, classes)
    }

    fn observe(&mut self, queries: ArrayView3<'_, f32>) -> Result<()> {
        self.inner.observe(queries)
    }

    fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        self.wrapper.attend(&mut *self.inner, queries, visible)
    }

    fn truncate(&mut self, tokens: usize) -> Result<()> {
        self.wrapper.truncate(&mut *self.inner, tokens)
    }

    fn checkpoint(&self) -> Result<SequencePoint> {
        self.inner.checkpoint()
    }

    fn rewind(&mut self, to: &SequencePoint) -> Result<()> {
        self.wrapper.rewind(&mut *self.inner, to)
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>> {
        Ok(wrap(self.inner.fork(sequence)?, self.wrapper.fork(sequence)?))
    }

    fn fork_adjusted(&self, pipeline: &Arc<PipelineConfig>) -> Result<Option<Box<dyn Attention>>> {
        let Some(inner) = self.inner.fork_adjusted(pipeline)? else { return Ok(None) };
        Ok(Some(wrap(inner, self.wrapper.fork(None)?)))
    }

    fn read_rows(&self, tokens: Range<usize>) -> Result<KeyValueRows> {
        self.inner.read_rows(tokens)
    }

    fn state(&self) -> Result<AttentionState> {
        self.inner.state()
    }

    fn resume(&mut self, state: &AttentionState) -> Result<()> {
        self.inner.resume(state)
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn index_bytes(&self) -> usize {
        self.inner.index_bytes()
    }

    fn held_bytes(&self) -> usize {
        self.inner.held_bytes()
    }
}
