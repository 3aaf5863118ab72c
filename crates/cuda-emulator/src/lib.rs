//! Emulation of CUDA kernels on the host, for tests.
//!
//! A C++ compiler compiles the same sources that run on a GPU, with a fiber for each CUDA thread
//! (`emulation.h`). Barriers, shuffles, ballots and atomics behave as on a device; shared memory
//! is NaN until it is written; the [`ThreadSchedule`] decides which thread runs ahead, so that
//! a missing barrier has an effect. The emulation tests neither speed, nor blocks that run in
//! parallel, nor the few lines of inline assembly, in place of which it uses portable code.

mod compiler;
mod library;
mod memory;
mod sanitizer;
mod schedule;

use std::sync::Arc;

use vattention_core::{Error, Result};
use vattention_cuda::{Device, Kernel, Program};

pub use self::memory::EmulatorMemory;
pub use self::sanitizer::run_sanitized;
pub use self::schedule::{ThreadOrder, ThreadSchedule};

use self::compiler::HostCompiler;
use self::library::KernelLibrary;

/// The host as a device.
#[derive(Clone, Debug)]
pub struct Emulator {
    compiler: Arc<HostCompiler>,
    schedule: ThreadSchedule,
}

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Module(Arc<KernelLibrary>);

impl Emulator {
    /// Creates an emulator that runs threads and blocks in ascending order.
    ///
    /// # Errors
    /// If there is no C++ compiler.
    pub fn new() -> Result<Self> {
        let compiler = Arc::new(HostCompiler::find(false)?);
        Ok(Self { compiler, schedule: ThreadSchedule::default() })
    }

    /// Creates an emulator whose kernels end the process at the first access out of bounds. The
    /// runtime of the address sanitizer must be loaded before the program.
    ///
    /// # Errors
    /// If there is no C++ compiler.
    pub fn sanitized() -> Result<Self> {
        let compiler = Arc::new(HostCompiler::find(true)?);
        Ok(Self { compiler, schedule: ThreadSchedule::default() })
    }

    /// Returns the emulator with another order of threads and blocks.
    #[must_use]
    pub fn with_order(self, schedule: ThreadSchedule) -> Self {
        Self { schedule, ..self }
    }
}

#[allow(unsafe_code, reason = "the trait's launch is unsafe")]
impl Device for Emulator {
    type Memory = EmulatorMemory;
    type Module = Module;
    type Graph = Vec<Kernel<Module>>;

    fn summary(&self) -> String {
        format!("emulation by {}", self.compiler.version())
    }

    fn allocate(&self, bytes: usize) -> Result<EmulatorMemory> {
        EmulatorMemory::new(bytes)
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<EmulatorMemory> {
        EmulatorMemory::new(bytes)
    }

    fn address(&self, memory: &EmulatorMemory) -> u64 {
        memory.address()
    }

    fn write(&self, bytes: &[u8], memory: &EmulatorMemory, at: usize) -> Result<()> {
        memory.write(bytes, at);
        Ok(())
    }

    fn read(&self, memory: &EmulatorMemory, at: usize, bytes: &mut [u8]) -> Result<()> {
        memory.read(at, bytes);
        Ok(())
    }

    fn compile(&self, program: &Program) -> Result<Module> {
        KernelLibrary::open(&self.compiler.library(program)?).map(Module)
    }

    unsafe fn launch(&self, kernel: &Kernel<Module>) -> Result<()> {
        // SAFETY: the caller vouches for the arguments.
        unsafe { kernel.module.0.run(kernel, self.schedule) }
    }

    unsafe fn record(&self, kernels: &[Kernel<Module>]) -> Result<Vec<Kernel<Module>>> {
        Ok(kernels.to_vec())
    }

    fn replay(&self, graph: &Vec<Kernel<Module>>) -> Result<()> {
        // SAFETY: the caller of `record` vouches for the arguments.
        graph.iter().try_for_each(|kernel| unsafe { self.launch(kernel) })
    }
}

/// Environment variable that turns skips of tests without the emulator into failures.
pub const REQUIRE_EMULATOR: &str = "VATTENTION_REQUIRE_EMULATOR";

fn fail(reason: String) -> Error {
    Error::Backend { backend: "cuda emulation".to_owned(), reason }
}
