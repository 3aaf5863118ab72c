//! A backend that notes when it is called, which tells a step's parts apart from outside.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ndarray::ArrayView3;
use vattention::{Attention, Backend, Options, Output, PipelineConfig, Result, RowsView, Shape, TokenClass};

/// When calls of one sequence's layers began and ended, in order.
pub(crate) type Log = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// Another backend, with a clock.
pub(crate) struct Clocked {
    pub(crate) inner: Box<dyn Backend>,
    pub(crate) log: Log,
}

struct ClockedAttention {
    inner: Box<dyn Attention>,
    log: Log,
}

impl ClockedAttention {
    fn timed<T>(&mut self, call: impl FnOnce(&mut dyn Attention) -> T) -> T {
        let start = Instant::now();
        let answer = call(self.inner.as_mut());
        let times = (start, Instant::now());
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(times);
        answer
    }
}

impl Backend for Clocked {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn summary(&self) -> &str {
        self.inner.summary()
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        let inner = self.inner.start(pipeline, layer, shape, options)?;
        Ok(Box::new(ClockedAttention { inner, log: self.log.clone() }))
    }
}

impl Attention for ClockedAttention {
    fn append_rows(
        &mut self,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        self.timed(|inner| inner.append_rows(keys, values, classes))
    }

    fn observe(&mut self, queries: ArrayView3<'_, f32>) -> Result<()> {
        self.inner.observe(queries)
    }

    fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        self.timed(|inner| inner.attend(queries, visible))
    }

    fn truncate(&mut self, tokens: usize) -> Result<()> {
        self.inner.truncate(tokens)
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>> {
        Ok(Box::new(Self { inner: self.inner.fork(sequence)?, log: self.log.clone() }))
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
