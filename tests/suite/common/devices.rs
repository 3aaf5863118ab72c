//! A device that counts its calls and can fail at one of them.

use std::sync::{Arc, Mutex};

use vattention::cuda::{Device, Kernel, Program};
use vattention::{Error, Result};

/// Number of calls to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Calls {
    pub(crate) allocations: usize,
    pub(crate) on_host: usize,
    pub(crate) writes: usize,
    pub(crate) reads: usize,
    pub(crate) launches: usize,
    pub(crate) replays: usize,
}

/// A device that counts its calls and can fail at one of them.
#[derive(Clone, Debug)]
pub(crate) struct Watched<D> {
    device: D,
    calls: Arc<Mutex<Calls>>,
    /// Number of calls before the one that fails.
    left: Arc<Mutex<Option<usize>>>,
}

impl<D: Device> Watched<D> {
    pub(crate) fn new(device: D) -> Self {
        Self { device, calls: Arc::default(), left: Arc::default() }
    }

    /// Returns the number of calls since the last time, and resets it.
    pub(crate) fn take(&self) -> Calls {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// Lets the call with this number fail, counted from now on.
    pub(crate) fn fail_at(&self, call: usize) {
        *self.left.lock().unwrap() = Some(call);
    }

    /// Returns true if the call that fails was reached. Later calls do not fail.
    pub(crate) fn has_failed(&self) -> bool {
        self.left.lock().unwrap().take().is_none()
    }

    fn begin(&self, count: impl FnOnce(&mut Calls)) -> Result<()> {
        count(&mut self.calls.lock().unwrap());
        let mut left = self.left.lock().unwrap();
        let fails = *left == Some(0);
        *left = left.and_then(|left| left.checked_sub(1));
        if fails { Err(Error::Memory { bytes: 1 }) } else { Ok(()) }
    }
}

#[allow(unsafe_code, reason = "`launch` of the trait is unsafe")]
impl<D: Device> Device for Watched<D> {
    type Memory = D::Memory;
    type Module = D::Module;
    type Graph = D::Graph;

    fn summary(&self) -> String {
        self.device.summary()
    }

    fn allocate(&self, bytes: usize) -> Result<D::Memory> {
        self.begin(|calls| calls.allocations += 1)?;
        self.device.allocate(bytes)
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<D::Memory> {
        self.begin(|calls| calls.on_host += 1)?;
        self.device.allocate_on_host(bytes)
    }

    fn address(&self, memory: &D::Memory) -> u64 {
        self.device.address(memory)
    }

    fn write(&self, bytes: &[u8], memory: &D::Memory, at: usize) -> Result<()> {
        self.begin(|calls| calls.writes += 1)?;
        self.device.write(bytes, memory, at)
    }

    fn read(&self, memory: &D::Memory, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.begin(|calls| calls.reads += 1)?;
        self.device.read(memory, at, bytes)
    }

    fn compile(&self, program: &Program) -> Result<D::Module> {
        self.begin(|_| ())?;
        self.device.compile(program)
    }

    unsafe fn launch(&self, kernel: &Kernel<D::Module>) -> Result<()> {
        self.begin(|calls| calls.launches += 1)?;
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.device.launch(kernel) }
    }

    unsafe fn record(&self, kernels: &[Kernel<D::Module>]) -> Result<D::Graph> {
        self.begin(|_| ())?;
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.device.record(kernels) }
    }

    fn replay(&self, graph: &D::Graph) -> Result<()> {
        self.begin(|calls| calls.replays += 1)?;
        self.device.replay(graph)
    }
}
