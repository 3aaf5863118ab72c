//! Interface of a machine that runs kernels.

use std::fmt::Debug;

use vattention_core::Result;

use crate::Program;

/// A machine that compiles and runs kernels: a GPU through its driver, or an emulation.
///
/// Work runs in the order in which it was started, as on one CUDA stream: a kernel sees what was
/// written before it, and [`read`](Self::read) waits for all earlier work.
pub trait Device: Clone + Debug + Send + Sync + 'static {
    /// Memory of the device. Dropping it frees it once the work started so far has finished.
    type Memory: Debug + Send + Sync;

    /// A compiled program.
    type Module: Clone + Debug + Send + Sync;

    /// A recorded sequence of kernels.
    type Graph: Debug + Send + Sync;

    /// Name of the device and its compiler, in one line.
    fn summary(&self) -> String;

    /// Allocates `bytes` zeroed bytes at an address that is a multiple of 256.
    ///
    /// # Errors
    /// [`Error::Memory`](vattention_core::Error::Memory) if the memory does not suffice.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Allocates memory of the host that the device reads over the bus. It has the same alignment
    /// and is zeroed like memory from [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate).
    fn allocate_on_host(&self, bytes: usize) -> Result<Self::Memory>;

    /// Address of the memory as kernels see it.
    fn address(&self, memory: &Self::Memory) -> u64;

    /// Copies bytes into the memory at offset `at`.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If the bytes do not fit there.
    fn write(&self, bytes: &[u8], memory: &Self::Memory, at: usize) -> Result<()>;

    /// Copies bytes out of the memory from offset `at`.
    ///
    /// # Errors
    /// If the device is lost, or earlier work has failed.
    ///
    /// # Panics
    /// If the memory ends before the last byte.
    fn read(&self, memory: &Self::Memory, at: usize, bytes: &mut [u8]) -> Result<()>;

    /// Compiles a program, unless it has been compiled before.
    ///
    /// # Errors
    /// If there is no compiler, or it rejects the program; the error has the compiler's output.
    fn compile(&self, program: &Program) -> Result<Self::Module>;

    /// Starts a kernel.
    ///
    /// # Errors
    /// If the program has no such kernel, or the device refuses to start it.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters in number, order and type, and all memory that
    /// the kernel accesses through them is valid until the kernel has finished.
    #[allow(unsafe_code, reason = "arguments are not checked against the kernel")]
    unsafe fn launch(&self, kernel: &Kernel<Self::Module>) -> Result<()>;

    /// Records kernels that [`replay`](Self::replay) starts one after the other, any number of
    /// times.
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch).
    ///
    /// # Safety
    /// The conditions of [`launch`](Self::launch), with memory that is valid until the last
    /// [`replay`](Self::replay) has finished.
    #[allow(unsafe_code, reason = "arguments are not checked against the kernels")]
    unsafe fn record(&self, kernels: &[Kernel<Self::Module>]) -> Result<Self::Graph>;

    /// Starts the recorded kernels, in order.
    ///
    /// # Errors
    /// If the device refuses to start the kernels.
    fn replay(&self, graph: &Self::Graph) -> Result<()>;
}

/// A launch of a kernel: the program, the grid and the arguments.
#[derive(Clone, Debug)]
pub struct Kernel<M> {
    /// The program.
    pub module: M,
    /// Name of the kernel in the program.
    pub name: &'static str,
    /// Blocks and threads.
    pub grid: Grid,
    /// Arguments, in the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
}

/// Numbers of blocks and threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks, along x and y.
    pub blocks: [u32; 2],
    /// Threads in a block, along x: a multiple of 32, at most 1024.
    pub threads: u32,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// Address of [`Device::address`], or one inside that memory.
    Address(u64),
    /// `unsigned int`
    U32(u32),
    /// `unsigned long long`
    U64(u64),
    /// `float`
    F32(f32),
}
