//! A backend that notes when it is called, which tells a step's parts apart from outside.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ndarray::ArrayView3;
use vattention::engine::{Wrapper, wrap};
use vattention::{Attention, Backend, Options, Output, PipelineConfig, Result, RowsView, Shape, TokenClass};

/// When calls of one sequence's layers began and ended, in order.
pub(crate) type Log = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// Another backend, with a clock.
pub(crate) struct Clocked {
    pub(crate) inner: Box<dyn Backend>,
    pub(crate) log: Log,
}

/// The log of one layer's attention.
struct CallClock(Log);

impl CallClock {
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = call();
        let times = (start, Instant::now());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(times);
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
        Ok(wrap(inner, CallClock(self.log.clone())))
    }
}

impl Wrapper for CallClock {
    fn append_rows(
        &mut self,
        inner: &mut dyn Attention,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        self.timed(|| inner.append_rows(keys, values, classes))
    }

    fn attend(
        &mut self,
        inner: &mut dyn Attention,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        self.timed(|| inner.attend(queries, visible))
    }

    fn fork(&self, _: Option<u32>) -> Result<Self> {
        Ok(Self(self.0.clone()))
    }
}
