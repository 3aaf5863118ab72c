//! Kernels to be started one after the other.

use std::sync::Arc;

use vattention_core::Result;

use super::Array;
use crate::{Argument, Device, Grid, Kernel};

/// Kernels with what they work on, in the order in which they are to run.
///
/// Only the launch functions of this module add to it, and they have checked what they add.
#[derive(Debug)]
pub struct Work<D: Device> {
    device: D,
    kernels: Vec<Kernel<D::Module>>,
    /// What the kernels read and write, kept until they have run.
    memory: Vec<Arc<D::Memory>>,
}

/// Work that can be done again and again.
#[derive(Debug)]
pub struct Recorded<D: Device> {
    device: D,
    graph: D::Graph,
    _memory: Vec<Arc<D::Memory>>,
}

/// What a kernel is given: a number, or a place in an array, which is kept.
#[derive(Debug)]
pub(super) enum Given<D: Device> {
    /// A place, or nothing where the kernel allows it.
    Place(Option<(Arc<D::Memory>, u64)>),
    /// A number.
    Number(u32),
}

impl<D: Device> Given<D> {
    /// An array that may be missing.
    pub(super) fn maybe<T>(array: Option<&super::Array<D, T>>) -> Self {
        Self::Place(array.and_then(|array| match array.given() {
            Self::Place(place) => place,
            Self::Number(_) => None,
        }))
    }
}

impl<D: Device> From<u32> for Given<D> {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl<D: Device> From<usize> for Given<D> {
    /// For numbers that are known to be small.
    fn from(number: usize) -> Self {
        Self::Number(number as u32)
    }
}

impl<D: Device> Work<D> {
    /// None.
    pub fn new(device: &D) -> Self {
        Self { device: device.clone(), kernels: Vec::new(), memory: Vec::new() }
    }

    /// Adds a kernel. Without blocks there is nothing to add.
    ///
    /// # Safety
    /// What is given is what the kernel declares, in number, order and type, and what the kernel
    /// reads and writes for it lies within the arrays.
    #[allow(unsafe_code, reason = "what is given is not checked against the kernel")]
    pub(super) unsafe fn add(
        &mut self,
        module: &D::Module,
        name: &'static str,
        grid: Grid,
        given: impl IntoIterator<Item = Given<D>>,
    ) {
        if grid.blocks.contains(&0) {
            return;
        }
        let argument = |given| match given {
            Given::Number(number) => Argument::U32(number),
            Given::Place(None) => Argument::Address(0),
            Given::Place(Some((memory, address))) => {
                self.memory.push(memory);
                Argument::Address(address)
            }
        };
        let arguments = given.into_iter().map(argument).collect();
        self.kernels.push(Kernel { module: module.clone(), name, grid, arguments });
    }

    /// Keeps an array that kernels find by its address alone.
    pub(super) fn keep<T>(&mut self, array: &super::Array<D, T>) {
        if let Given::Place(Some((memory, _))) = array.given() {
            self.memory.push(memory);
        }
    }

    /// Starts all kernels.
    ///
    /// # Errors
    /// If the device refuses one.
    #[allow(unsafe_code, reason = "the only start of kernels one by one")]
    pub fn run(self) -> Result<()> {
        // SAFETY: so says who has added the kernel; the arrays live here until all have been
        // started, and memory is freed after the work that was asked for before.
        self.kernels.iter().try_for_each(|kernel| unsafe { self.device.launch(kernel) })
    }

    /// Keeps all kernels, to be started together.
    ///
    /// # Errors
    /// If the device refuses one.
    #[allow(unsafe_code, reason = "the only record of kernels")]
    pub fn record(self) -> Result<Recorded<D>> {
        // SAFETY: so says who has added the kernel; the arrays live as long as the record.
        let graph = unsafe { self.device.record(&self.kernels) }?;
        Ok(Recorded { device: self.device, graph, _memory: self.memory })
    }
}

impl<D: Device> Recorded<D> {
    /// Starts all kernels, in order.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn replay(&self) -> Result<()> {
        self.device.replay(&self.graph)
    }
}

impl<D: Device, T> Array<D, T> {
    /// The place, for a kernel.
    pub(super) fn given(&self) -> Given<D> {
        Given::Place(Some((self.memory.clone(), self.address())))
    }
}
