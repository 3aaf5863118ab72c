//! Sequences of kernels.

use std::sync::Arc;

use vattention_core::Result;

use super::Array;
use crate::{Argument, Device, Grid, Kernel};

/// Kernels in the order in which they run, with the memory that they use.
///
/// Only the launch functions of this module add kernels, after checking the arguments.
#[derive(Debug)]
pub struct Work<D: Device> {
    device: D,
    kernels: Vec<Kernel<D::Module>>,
    /// Memory that the kernels read and write, owned until they have run.
    memory: Vec<Arc<D::Memory>>,
}

/// Work that can run any number of times.
#[derive(Debug)]
pub struct RecordedWork<D: Device> {
    device: D,
    graph: D::Graph,
    _memory: Vec<Arc<D::Memory>>,
}

/// An argument of a kernel: a number, or an address in an array whose memory the work shares.
#[derive(Debug)]
pub(super) enum LaunchArgument<D: Device> {
    /// Memory and an address in it; `None` is a null pointer, for optional arrays.
    Place(Option<(Arc<D::Memory>, u64)>),
    /// An integer.
    Number(u32),
}

impl<D: Device> LaunchArgument<D> {
    /// Converts an optional array.
    pub(super) fn optional<T>(array: Option<&super::Array<D, T>>) -> Self {
        Self::Place(array.and_then(|array| match array.argument() {
            Self::Place(place) => place,
            Self::Number(_) => None,
        }))
    }
}

impl<D: Device> From<u32> for LaunchArgument<D> {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl<D: Device> From<usize> for LaunchArgument<D> {
    /// Converts a number that is known to fit in 32 bits.
    fn from(number: usize) -> Self {
        Self::Number(number as u32)
    }
}

impl<D: Device> Work<D> {
    /// Returns work without kernels.
    pub fn new(device: &D) -> Self {
        Self { device: device.clone(), kernels: Vec::new(), memory: Vec::new() }
    }

    /// Adds a launch of a kernel, unless the grid has no blocks.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters in number, order and type, and the kernel
    /// accesses only memory of the arrays through them.
    #[allow(unsafe_code, reason = "arguments are not checked against the kernel")]
    pub(super) unsafe fn add(
        &mut self,
        module: &D::Module,
        name: &'static str,
        grid: Grid,
        arguments: impl IntoIterator<Item = LaunchArgument<D>>,
    ) {
        if grid.blocks.contains(&0) {
            return;
        }
        let argument = |argument| match argument {
            LaunchArgument::Number(number) => Argument::U32(number),
            LaunchArgument::Place(None) => Argument::Address(0),
            LaunchArgument::Place(Some((memory, address))) => {
                self.memory.push(memory);
                Argument::Address(address)
            }
        };
        let arguments = arguments.into_iter().map(argument).collect();
        self.kernels.push(Kernel { module: module.clone(), name, grid, arguments });
    }

    /// Shares ownership of an array to which kernels have only an address.
    pub(super) fn keep<T>(&mut self, array: &super::Array<D, T>) {
        if let LaunchArgument::Place(Some((memory, _))) = array.argument() {
            self.memory.push(memory);
        }
    }

    /// Starts all kernels.
    ///
    /// # Errors
    /// If the device refuses one.
    #[allow(unsafe_code, reason = "the only start of kernels one by one")]
    pub fn run(self) -> Result<()> {
        // SAFETY: the callers of `add` vouch for the kernels. The arrays live here until all
        // kernels have been started, and the device frees memory only after work that was started
        // before.
        self.kernels.iter().try_for_each(|kernel| unsafe { self.device.launch(kernel) })
    }

    /// Records all kernels.
    ///
    /// # Errors
    /// If the device refuses one.
    #[allow(unsafe_code, reason = "the only record of kernels")]
    pub fn record(self) -> Result<RecordedWork<D>> {
        // SAFETY: the callers of `add` vouch for the kernels, and the arrays live as long as the
        // graph.
        let graph = unsafe { self.device.record(&self.kernels) }?;
        Ok(RecordedWork { device: self.device, graph, _memory: self.memory })
    }
}

impl<D: Device> RecordedWork<D> {
    /// Starts all kernels, in order.
    ///
    /// # Errors
    /// If the device refuses to start them.
    pub fn replay(&self) -> Result<()> {
        self.device.replay(&self.graph)
    }
}

impl<D: Device, T> Array<D, T> {
    /// Converts the array to an argument of a kernel.
    pub(super) fn argument(&self) -> LaunchArgument<D> {
        LaunchArgument::Place(Some((self.memory.clone(), self.address())))
    }
}
