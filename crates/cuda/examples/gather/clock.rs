//! How long recorded kernels take, from memory.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, Now, Recorded, Take, Taken, Work};

/// What a copy goes over, in bytes.
const COPIED: usize = 1 << 30;

/// Times are the median of at least so many, and of at most so many.
const FEWEST: usize = 5;
const MOST: usize = 200;

/// Kernels that fill some memory, so that of what was in the device's caches nothing is left.
pub(crate) struct Flush<D: Device>(Recorded<D>);

/// Tells the time.
pub(crate) enum Clock {
    /// The host's, for a device that has done its work when it returns.
    Host,
    /// The device's own.
    Gpu(Gpu),
}

/// Events on the stream on which kernels are started.
pub(crate) struct Gpu {
    stream: Arc<CudaStream>,
    begin: CudaEvent,
    end: CudaEvent,
}

impl<D: Device> Flush<D> {
    /// For caches smaller than `bytes`. It writes them as bits of tokens that nobody takes.
    pub(crate) fn new(device: &D, bytes: usize) -> vattention_core::Result<Self> {
        let (rows, capacity) = (4, bytes * 2);
        let taken = Taken::new(device, rows, capacity)?;
        let now = Now::new(Array::zeros(device, Now::<D>::LEN)?, capacity)?;
        let mut work = Work::new(device);
        Take::new(device)?.add(&mut work, &now, &Array::zeros(device, 0)?, &taken, true)?;
        Ok(Self(work.record()?))
    }
}

impl Clock {
    /// Of the first GPU.
    pub(crate) fn of_gpu() -> Result<Self, Box<dyn Error>> {
        let stream = CudaContext::new(0)?.default_stream();
        let event = || stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (begin, end) = (event()?, event()?);
        Ok(Self::Gpu(Gpu { stream, begin, end }))
    }

    /// Bytes read and written in a second, when the device copies a gigabyte within its memory; none
    /// of the host.
    pub(crate) fn copy_rate(&self) -> Result<Option<f64>, Box<dyn Error>> {
        let Self::Gpu(gpu) = self else { return Ok(None) };
        let from = gpu.stream.alloc_zeros::<u8>(COPIED)?;
        let mut to = gpu.stream.alloc_zeros::<u8>(COPIED)?;
        let mut copy = || gpu.seconds(|| Ok(gpu.stream.memcpy_dtod(&from, &mut to)?));
        copy()?;
        let mut times = (0..20).map(|_| copy()).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(2.0 * COPIED as f64 / median(&mut times)))
    }

    /// Bytes of the device's memory that nobody has; not known of the host.
    pub(crate) fn free_bytes(&self) -> Result<Option<usize>, Box<dyn Error>> {
        let Self::Gpu(Gpu { stream, .. }) = self else { return Ok(None) };
        // What was freed is there again when the stream has come to it.
        stream.synchronize()?;
        Ok(Some(stream.context().mem_get_info()?.0))
    }

    /// Seconds of one replay, the median of many in about `limit` seconds, and of how many. Before
    /// each one the caches are flushed; the first is not counted.
    pub(crate) fn median<D: Device>(
        &self,
        work: &Recorded<D>,
        flush: &Flush<D>,
        limit: f64,
    ) -> Result<(f64, usize), Box<dyn Error>> {
        self.once(work, flush)?;
        let began = Instant::now();
        let mut times = Vec::new();
        while times.len() < FEWEST || (times.len() < MOST && began.elapsed().as_secs_f64() < limit)
        {
            times.push(self.once(work, flush)?);
        }
        Ok((median(&mut times), times.len()))
    }

    fn once<D: Device>(&self, work: &Recorded<D>, flush: &Flush<D>) -> Result<f64, Box<dyn Error>> {
        flush.0.replay()?;
        match self {
            Self::Host => {
                let begin = Instant::now();
                work.replay()?;
                Ok(begin.elapsed().as_secs_f64())
            }
            // The host has asked for all of it long before the flush is done.
            Self::Gpu(gpu) => gpu.seconds(|| Ok(work.replay()?)),
        }
    }
}

impl Gpu {
    /// Seconds from when all work before is done until this work is.
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

/// The one in the middle, the upper one of two.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
