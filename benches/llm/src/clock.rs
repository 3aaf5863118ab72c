//! A backend that records the times of its calls, from which the times of a step's parts follow.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ndarray::ArrayView3;
use vattention::engine::{Wrapper, wrap};
use vattention::{
    Attention, Backend, Options, Output, PipelineConfig, Result, RowsView, Shape, TokenClass,
};

/// Begin and end of the calls of one sequence's layers, in order.
pub(crate) type Log = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// A backend that logs the calls of another one.
pub(crate) struct Clocked {
    pub(crate) inner: Box<dyn Backend>,
    pub(crate) log: Log,
}

/// A clock for one layer's attention.
struct CallClock(Log);

impl CallClock {
    fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        let times = (start, Instant::now());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(times);
        result
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
        self.time(|| inner.append_rows(keys, values, classes))
    }

    fn attend(
        &mut self,
        inner: &mut dyn Attention,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        self.time(|| inner.attend(queries, visible))
    }

    fn fork(&self, _: Option<u32>) -> Result<Self> {
        Ok(Self(self.0.clone()))
    }
}
