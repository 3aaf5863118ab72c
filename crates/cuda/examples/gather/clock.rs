//! Measures the time of recorded kernels that start with cold caches.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, RecordedWork, StepNumbers, Take, Taken, Work};

/// Bytes that the copy for [`Clock::copy_rate`] moves.
const COPIED: usize = 1 << 30;

/// Minimum and maximum number of times of which the median is taken.
const MIN_TIMES: usize = 5;
const MAX_TIMES: usize = 200;

/// Kernels that overwrite enough memory to evict everything else from the device's caches.
pub(crate) struct Flush<D: Device>(RecordedWork<D>);

/// A clock for kernels.
pub(crate) enum Clock {
    /// The host's clock, for a device that has finished its work when a call returns.
    Host,
    /// The device's clock.
    Gpu(GpuClock),
}

/// Events on the stream on which kernels are started.
pub(crate) struct GpuClock {
    stream: Arc<CudaStream>,
    begin: CudaEvent,
    end: CudaEvent,
}

impl<D: Device> Flush<D> {
    /// Flushes caches smaller than `bytes`, by writing the bits of a large set of taken tokens.
    pub(crate) fn new(device: &D, bytes: usize) -> vattention_core::Result<Self> {
        let (rows, capacity) = (4, bytes * 2);
        let taken = Taken::new(device, rows, capacity)?;
        let step = StepNumbers::new(Array::zeros(device, StepNumbers::<D>::LEN)?, capacity)?;
        let mut work = Work::new(device);
        Take::new(device)?.add(&mut work, &step, &Array::zeros(device, 0)?, &taken, true)?;
        Ok(Self(work.record()?))
    }
}

impl Clock {
    /// Opens the clock of the first GPU.
    pub(crate) fn for_gpu() -> Result<Self, Box<dyn Error>> {
        let stream = CudaContext::new(0)?.default_stream();
        let event = || stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (begin, end) = (event()?, event()?);
        Ok(Self::Gpu(GpuClock { stream, begin, end }))
    }

    /// Bytes read and written per second when the device copies a gigabyte within its memory;
    /// `None` for the host.
    pub(crate) fn copy_rate(&self) -> Result<Option<f64>, Box<dyn Error>> {
        let Self::Gpu(gpu) = self else { return Ok(None) };
        let from = gpu.stream.alloc_zeros::<u8>(COPIED)?;
        let mut to = gpu.stream.alloc_zeros::<u8>(COPIED)?;
        let mut copy = || gpu.seconds(|| Ok(gpu.stream.memcpy_dtod(&from, &mut to)?));
        copy()?;
        let mut times = (0..20).map(|_| copy()).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(2.0 * COPIED as f64 / median(&mut times)))
    }

    /// Free bytes of the device's memory; `None` for the host.
    pub(crate) fn free_bytes(&self) -> Result<Option<usize>, Box<dyn Error>> {
        let Self::Gpu(GpuClock { stream, .. }) = self else { return Ok(None) };
        // Memory is freed in the order of the stream.
        stream.synchronize()?;
        Ok(Some(stream.context().mem_get_info()?.0))
    }

    /// Median time of a replay in seconds, and the number of replays, which take about `limit`
    /// seconds. The caches are flushed before each replay, and the first replay is not counted.
    pub(crate) fn median<D: Device>(
        &self,
        work: &RecordedWork<D>,
        flush: &Flush<D>,
        limit: f64,
    ) -> Result<(f64, usize), Box<dyn Error>> {
        self.time_replay(work, flush)?;
        let began = Instant::now();
        let mut times = Vec::new();
        while times.len() < MIN_TIMES
            || (times.len() < MAX_TIMES && began.elapsed().as_secs_f64() < limit)
        {
            times.push(self.time_replay(work, flush)?);
        }
        Ok((median(&mut times), times.len()))
    }

    fn time_replay<D: Device>(
        &self,
        work: &RecordedWork<D>,
        flush: &Flush<D>,
    ) -> Result<f64, Box<dyn Error>> {
        flush.0.replay()?;
        match self {
            Self::Host => {
                let begin = Instant::now();
                work.replay()?;
                Ok(begin.elapsed().as_secs_f64())
            }
            // The host has enqueued the replay long before the flush is done.
            Self::Gpu(gpu) => gpu.seconds(|| Ok(work.replay()?)),
        }
    }
}

impl GpuClock {
    /// Seconds from the end of all earlier work to the end of the work that `start` starts.
    fn seconds(
        &self,
        start: impl FnOnce() -> Result<(), Box<dyn Error>>,
    ) -> Result<f64, Box<dyn Error>> {
        self.begin.record(&self.stream)?;
        start()?;
        self.end.record(&self.stream)?;
        Ok(f64::from(self.begin.elapsed_ms(&self.end)?) / 1e3)
    }
}

/// Upper median.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
