//! What a machine that runs kernels offers.

use std::fmt::Debug;

use vattention_core::Result;

use crate::Program;

/// A machine that compiles and runs kernels: a GPU through its driver, or an emulation.
///
/// Work is done in the order in which it was asked for, as on one stream: a kernel sees what was
/// written before it, and [`read`](Self::read) waits for all of it.
pub trait Device: Clone + Debug + Send + Sync + 'static {
    /// Memory of the device. Dropping it frees it, once the work asked for so far has been done.
    type Memory: Debug + Send + Sync;

    /// A compiled program.
    type Module: Clone + Debug + Send + Sync;

    /// Kernels that are started together.
    type Graph: Debug + Send + Sync;

    /// What it is, in one line.
    fn summary(&self) -> String;

    /// Memory of `bytes` bytes, all zero, at a multiple of 256.
    ///
    /// # Errors
    /// [`Error::Memory`](vattention_core::Error::Memory) if there is not so much.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Memory of the host that the device reads over the bus: as [`allocate`](Self::allocate)
    /// otherwise.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_on_host(&self, bytes: usize) -> Result<Self::Memory>;

    /// Where the memory is, to the kernels.
    fn address(&self, memory: &Self::Memory) -> u64;

    /// Copies bytes to a place in the memory.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If they do not fit there.
    fn write(&self, bytes: &[u8], memory: &Self::Memory, at: usize) -> Result<()>;

    /// Copies bytes from a place in the memory.
    ///
    /// # Errors
    /// If the device is lost, or work asked for before has failed.
    ///
    /// # Panics
    /// If fewer bytes are there.
    fn read(&self, memory: &Self::Memory, at: usize, bytes: &mut [u8]) -> Result<()>;

    /// Compiles a program, unless it has been compiled before.
    ///
    /// # Errors
    /// If there is no compiler, or the program is refused: with what the compiler says.
    fn compile(&self, program: &Program) -> Result<Self::Module>;

    /// Starts a kernel.
    ///
    /// # Errors
    /// If the program has no such kernel, or the device refuses to start it.
    ///
    /// # Safety
    /// The arguments are those that the kernel declares, in number, order and type, and what the
    /// kernel reads and writes for them lies within memory that lives until it has run.
    #[allow(unsafe_code, reason = "arguments are not checked against the kernel")]
    unsafe fn launch(&self, kernel: &Kernel<Self::Module>) -> Result<()>;

    /// Prepares kernels to be started together, one after the other, as often as wanted.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    /// As [`launch`](Self::launch), and the memory lives until the last [`replay`](Self::replay)
    /// has run.
    #[allow(unsafe_code, reason = "arguments are not checked against the kernels")]
    unsafe fn record(&self, kernels: &[Kernel<Self::Module>]) -> Result<Self::Graph>;

    /// Starts them.
    ///
    /// # Errors
    /// If the device refuses to start them.
    fn replay(&self, graph: &Self::Graph) -> Result<()>;
}

/// A kernel of a program, and how to start it.
#[derive(Clone, Debug)]
pub struct Kernel<M> {
    /// The program.
    pub module: M,
    /// The kernel's name in it.
    pub name: &'static str,
    /// How many threads run it.
    pub grid: Grid,
    /// What it is given.
    pub arguments: Vec<Argument>,
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks, along x and y.
    pub blocks: [u32; 2],
    /// Threads in a block: a multiple of 32, at most 1024, along x.
    pub threads: u32,
}

/// What a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An address, of [`Device::address`] or beyond.
    Address(u64),
    /// `unsigned int`
    U32(u32),
    /// `unsigned long long`
    U64(u64),
    /// `float`
    F32(f32),
}
