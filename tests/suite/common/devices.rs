//! Devices that fail, and devices that count.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use vattention::cuda::{Device, Kernel, Program};
use vattention::{Error, Result};

/// A device of which one call fails: of those from now on, the one of that number.
#[derive(Clone, Debug)]
pub(crate) struct Mortal<D> {
    device: D,
    calls: Arc<AtomicUsize>,
}

/// No call fails. It is also what follows 0.
const IMMORTAL: usize = usize::MAX;

impl<D: Device> Mortal<D> {
    pub(crate) fn new(device: D) -> Self {
        Self { device, calls: Arc::new(AtomicUsize::new(IMMORTAL)) }
    }

    pub(crate) fn fail_at(&self, call: usize) {
        self.calls.store(call, Ordering::Relaxed);
    }

    /// Whether that call was reached; none fails any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.calls.swap(IMMORTAL, Ordering::Relaxed) == IMMORTAL
    }

    fn live(&self) -> Result<()> {
        let left = self.calls.load(Ordering::Relaxed);
        let next = if left == IMMORTAL { IMMORTAL } else { left.wrapping_sub(1) };
        self.calls.store(next, Ordering::Relaxed);
        if left == 0 { Err(Error::Memory { bytes: 1 }) } else { Ok(()) }
    }
}

#[allow(unsafe_code, reason = "the trait's launch is")]
impl<D: Device> Device for Mortal<D> {
    type Memory = D::Memory;
    type Module = D::Module;
    type Graph = D::Graph;

    fn summary(&self) -> String {
        self.device.summary()
    }

    fn allocate(&self, bytes: usize) -> Result<D::Memory> {
        self.live()?;
        self.device.allocate(bytes)
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<D::Memory> {
        self.live()?;
        self.device.allocate_on_host(bytes)
    }

    fn address(&self, memory: &D::Memory) -> u64 {
        self.device.address(memory)
    }

    fn write(&self, bytes: &[u8], memory: &D::Memory, at: usize) -> Result<()> {
        self.live()?;
        self.device.write(bytes, memory, at)
    }

    fn read(&self, memory: &D::Memory, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.live()?;
        self.device.read(memory, at, bytes)
    }

    fn compile(&self, program: &Program) -> Result<D::Module> {
        self.live()?;
        self.device.compile(program)
    }

    unsafe fn launch(&self, kernel: &Kernel<D::Module>) -> Result<()> {
        self.live()?;
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.device.launch(kernel) }
    }

    unsafe fn record(&self, kernels: &[Kernel<D::Module>]) -> Result<D::Graph> {
        self.live()?;
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.device.record(kernels) }
    }

    fn replay(&self, graph: &D::Graph) -> Result<()> {
        self.live()?;
        self.device.replay(graph)
    }
}

/// What a device was asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Calls {
    pub(crate) allocations: usize,
    pub(crate) on_host: usize,
    pub(crate) writes: usize,
    pub(crate) reads: usize,
    pub(crate) launches: usize,
    pub(crate) replays: usize,
}

/// A device that counts.
#[derive(Clone, Debug)]
pub(crate) struct Counting<D> {
    device: D,
    calls: Arc<Mutex<Calls>>,
}

impl<D: Device> Counting<D> {
    pub(crate) fn new(device: D) -> Self {
        Self { device, calls: Arc::default() }
    }

    fn count(&self, which: impl Fn(&mut Calls) -> &mut usize) {
        *which(&mut self.calls.lock().unwrap()) += 1;
    }

    /// The calls since it was asked last.
    pub(crate) fn take(&self) -> Calls {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

#[allow(unsafe_code, reason = "the trait's launch is")]
impl<D: Device> Device for Counting<D> {
    type Memory = D::Memory;
    type Module = D::Module;
    type Graph = D::Graph;

    fn summary(&self) -> String {
        self.device.summary()
    }

    fn allocate(&self, bytes: usize) -> Result<D::Memory> {
        self.count(|calls| &mut calls.allocations);
        self.device.allocate(bytes)
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<D::Memory> {
        self.count(|calls| &mut calls.on_host);
        self.device.allocate_on_host(bytes)
    }

    fn address(&self, memory: &D::Memory) -> u64 {
        self.device.address(memory)
    }

    fn write(&self, bytes: &[u8], memory: &D::Memory, at: usize) -> Result<()> {
        self.count(|calls| &mut calls.writes);
        self.device.write(bytes, memory, at)
    }

    fn read(&self, memory: &D::Memory, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.count(|calls| &mut calls.reads);
        self.device.read(memory, at, bytes)
    }

    fn compile(&self, program: &Program) -> Result<D::Module> {
        self.device.compile(program)
    }

    unsafe fn launch(&self, kernel: &Kernel<D::Module>) -> Result<()> {
        self.count(|calls| &mut calls.launches);
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.device.launch(kernel) }
    }

    unsafe fn record(&self, kernels: &[Kernel<D::Module>]) -> Result<D::Graph> {
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.device.record(kernels) }
    }

    fn replay(&self, graph: &D::Graph) -> Result<()> {
        self.count(|calls| &mut calls.replays);
        self.device.replay(graph)
    }
}
