//! A device that is none: runs the CUDA kernels on the host, for tests.
//!
//! The very sources that run on a GPU are compiled by a C++ compiler, with a fiber for each CUDA
//! thread (`emulation.h`). Barriers, shuffles, ballots and atomics do what they do on a device;
//! shared memory is NaN until it is written; the [`ThreadSchedule`] says which thread runs ahead, so that
//! a missing barrier shows. It proves nothing of speed, of blocks that run at once, or of the
//! few lines of inline assembly that have a portable twin.

mod compiler;
mod library;
mod memory;
mod sanitizer;
mod schedule;

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;

use vattention_core::{Error, Result};
use vattention_cuda::{Device, Kernel, Program};

pub use self::memory::Memory;
pub use self::sanitizer::run_sanitized;
pub use self::schedule::{ThreadOrder, ThreadSchedule};

use self::compiler::Compiler;
use self::library::Loaded;

/// The host, as a device.
#[derive(Clone, Debug)]
pub struct Emulator {
    compiler: Arc<Compiler>,
    schedule: ThreadSchedule,
}

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

impl Emulator {
    /// An emulator that runs threads and blocks in ascending order.
    ///
    /// # Errors
    /// If there is no C++ compiler.
    pub fn new() -> Result<Self> {
        Ok(Self { compiler: Arc::new(Compiler::find(false)?), schedule: ThreadSchedule::default() })
    }

    /// An emulator whose kernels end the process at the first access out of bounds. The runtime of
    /// the address sanitizer must have been loaded before the program.
    ///
    /// # Errors
    /// If there is no C++ compiler.
    pub fn sanitized() -> Result<Self> {
        Ok(Self { compiler: Arc::new(Compiler::find(true)?), schedule: ThreadSchedule::default() })
    }

    /// The same, with another order of threads and blocks.
    #[must_use]
    pub fn with_order(self, schedule: ThreadSchedule) -> Self {
        Self { schedule, ..self }
    }
}

#[allow(unsafe_code, reason = "the trait's launch is")]
impl Device for Emulator {
    type Memory = Memory;
    type Module = Module;
    type Graph = Vec<Kernel<Module>>;

    fn summary(&self) -> String {
        format!("emulation by {}", self.compiler.version())
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        Memory::new(bytes)
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Memory> {
        Memory::new(bytes)
    }

    fn address(&self, memory: &Memory) -> u64 {
        memory.address()
    }

    fn write(&self, bytes: &[u8], memory: &Memory, at: usize) -> Result<()> {
        memory.write(bytes, at);
        Ok(())
    }

    fn read(&self, memory: &Memory, at: usize, bytes: &mut [u8]) -> Result<()> {
        memory.read(at, bytes);
        Ok(())
    }

    fn compile(&self, program: &Program) -> Result<Module> {
        Loaded::open(&self.compiler.library(program)?).map(Module)
    }

    unsafe fn launch(&self, kernel: &Kernel<Module>) -> Result<()> {
        // SAFETY: the caller vouches for the arguments.
        unsafe { kernel.module.0.run(kernel, self.schedule) }
    }

    unsafe fn record(&self, kernels: &[Kernel<Module>]) -> Result<Vec<Kernel<Module>>> {
        Ok(kernels.to_vec())
    }

    fn replay(&self, graph: &Vec<Kernel<Module>>) -> Result<()> {
        // SAFETY: who recorded them vouches for the arguments.
        graph.iter().try_for_each(|kernel| unsafe { self.launch(kernel) })
    }
}

/// Variable of the environment without which tests that need the emulator may be skipped.
pub const REQUIRE_EMULATOR: &str = "VATTENTION_REQUIRE_EMULATOR";

/// Returns what a test needs, or prints `skipped: ` and the reason to stderr and returns `None`.
///
/// # Panics
/// If it is missing and the environment has the variable `required`.
pub fn or_skip<T>(needed: Result<T, impl Display>, required: &str) -> Option<T> {
    match needed {
        Ok(needed) => Some(needed),
        Err(error) if std::env::var_os(required).is_some() => panic!("{required} is set: {error}"),
        Err(error) => {
            // Written to the stream itself: output of a test that passes is not shown.
            let _ = writeln!(std::io::stderr(), "\nskipped: {error}");
            None
        }
    }
}

fn fail(reason: String) -> Error {
    Error::Backend { backend: "cuda emulation".to_owned(), reason }
}
