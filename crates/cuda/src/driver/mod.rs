//! NVIDIA GPUs, through their driver.
//!
//! cudarc panics if a library is missing, so each library is searched for before it is called.
//!
//! | file       | contents                                                  |
//! |------------|-----------------------------------------------------------|
//! | `compiler` | finds NVRTC and compiles programs with it                 |
//! | `cubins`   | cache of compiled programs on disk                        |
//! | `memory`   | memory of the device and of the host                      |

mod compiler;
mod cubins;
mod memory;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaContext, CudaGraph, CudaModule, CudaStream, LaunchConfig, PushKernelArg, sys,
};
use cudarc::nvrtc::Ptx;
use vattention_core::{Error, Result};

pub use self::compiler::{CompiledProgram, Compiler};
pub use self::memory::DriverMemory;
use crate::{Argument, Device, Kernel, Program};

/// Lowest compute capability that the kernels support.
const LEAST: (i32, i32) = (8, 0);

/// The first GPU of this machine.
#[derive(Clone, Debug)]
pub struct Driver {
    gpu: Arc<GpuContext>,
}

#[derive(Debug)]
struct GpuContext {
    name: String,
    /// Architecture for the compiler, such as `sm_90`.
    architecture: String,
    /// Default stream, on which all work runs.
    stream: Arc<CudaStream>,
    compiler: Compiler,
    modules: Mutex<HashMap<Program, Arc<CudaModule>>>,
}

/// A recorded sequence of kernels.
pub struct DriverGraph(Mutex<CudaGraph>);

// SAFETY: the driver's graphs may move between threads, and the lock admits one at a time.
unsafe impl Send for DriverGraph {}
// SAFETY: as above.
unsafe impl Sync for DriverGraph {}

impl std::fmt::Debug for DriverGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DriverGraph")
    }
}

impl Driver {
    /// Opens the first GPU, once in a process.
    ///
    /// # Errors
    /// [`Error::Backend`], which names the missing requirement: the driver, a GPU, a recent enough
    /// GPU, or the compiler NVRTC.
    pub fn open() -> Result<Self> {
        static DRIVER: LazyLock<Result<Driver, String>> = LazyLock::new(open);
        DRIVER.clone().map_err(refuse)
    }
}

fn open() -> Result<Driver, String> {
    // SAFETY: the call loads the driver's library, whose initialisers are NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver: its library libcuda.so was not found".into());
    }
    let driver = |error: DriverError| format!("the NVIDIA driver: {}", describe(error));
    if CudaContext::device_count().map_err(driver)? == 0 {
        return Err("the NVIDIA driver found no GPU".into());
    }
    let context = CudaContext::new(0).map_err(driver)?;
    // SAFETY: all work on memory runs on one stream, in order, and needs no events.
    unsafe { context.disable_event_tracking() };
    let name = context.name().map_err(driver)?;
    let (major, minor) = context.compute_capability().map_err(driver)?;
    if (major, minor) < LEAST {
        return Err(format!(
            "{name} has compute capability {major}.{minor}: expected at least {}.{}",
            LEAST.0, LEAST.1
        ));
    }
    let compiler = Compiler::find()?;
    let gpu = GpuContext {
        name,
        architecture: format!("sm_{major}{minor}"),
        stream: context.default_stream(),
        compiler,
        modules: Mutex::default(),
    };
    Ok(Driver { gpu: Arc::new(gpu) })
}

impl Device for Driver {
    type Memory = DriverMemory;
    type Module = Arc<CudaModule>;
    type Graph = DriverGraph;

    fn summary(&self) -> String {
        let GpuContext { name, architecture, compiler, .. } = &*self.gpu;
        format!("{name} ({architecture}), {compiler}")
    }

    fn allocate(&self, bytes: usize) -> Result<DriverMemory> {
        DriverMemory::on_device(&self.gpu.stream, bytes.max(1))
            .map_err(|error| out_of(bytes, error))
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<DriverMemory> {
        DriverMemory::on_host(&self.gpu.stream, bytes.max(1)).map_err(|error| out_of(bytes, error))
    }

    fn address(&self, memory: &DriverMemory) -> u64 {
        memory.address()
    }

    fn write(&self, bytes: &[u8], memory: &DriverMemory, at: usize) -> Result<()> {
        memory.write(bytes, at).map_err(failed)
    }

    fn read(&self, memory: &DriverMemory, at: usize, bytes: &mut [u8]) -> Result<()> {
        memory.read(at, bytes).map_err(failed)
    }

    fn compile(&self, program: &Program) -> Result<Arc<CudaModule>> {
        let mut modules = self.gpu.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(program) {
            return Ok(module.clone());
        }
        let module = self.gpu.load(program)?;
        modules.insert(program.clone(), module.clone());
        Ok(module)
    }

    unsafe fn launch(&self, kernel: &Kernel<Arc<CudaModule>>) -> Result<()> {
        // SAFETY: the caller upholds the conditions of `Device::launch`.
        unsafe { launch(&self.gpu.stream, kernel) }.map_err(failed)
    }

    /// Captures a separate stream, because other threads may be starting kernels on the default
    /// one.
    unsafe fn record(&self, kernels: &[Kernel<Arc<CudaModule>>]) -> Result<DriverGraph> {
        let stream = self.gpu.stream.context().new_stream().map_err(failed)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(failed)?;
        // SAFETY: the caller upholds the conditions of `Device::record`.
        let launched = kernels.iter().try_for_each(|kernel| unsafe { launch(&stream, kernel) });
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        launched.map_err(failed)?;
        let graph = graph.map_err(failed)?.ok_or_else(|| refuse("nothing was captured".into()))?;
        Ok(DriverGraph(Mutex::new(graph)))
    }

    fn replay(&self, graph: &DriverGraph) -> Result<()> {
        let graph = graph.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = &self.gpu.stream;
        stream.context().bind_to_thread().map_err(failed)?;
        // SAFETY: the graph and the stream belong to this context, and the graph is locked.
        unsafe { cudarc::driver::result::graph::launch(graph.cu_graph_exec(), stream.cu_stream()) }
            .map_err(failed)
    }
}

/// Starts a kernel on a stream.
///
/// # Safety
/// The conditions of [`Device::launch`].
unsafe fn launch(
    stream: &Arc<CudaStream>,
    kernel: &Kernel<Arc<CudaModule>>,
) -> Result<(), DriverError> {
    stream.context().bind_to_thread()?;
    let function = kernel.module.load_function(kernel.name)?;
    let mut launch = stream.launch_builder(&function);
    for argument in &kernel.arguments {
        match argument {
            Argument::Address(x) | Argument::U64(x) => launch.arg(x),
            Argument::U32(x) => launch.arg(x),
            Argument::F32(x) => launch.arg(x),
        };
    }
    let [x, y] = kernel.grid.blocks;
    let grid = LaunchConfig {
        grid_dim: (x, y, 1),
        block_dim: (kernel.grid.threads, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the caller vouches for the arguments.
    unsafe { launch.launch(grid) }.map(drop)
}

impl GpuContext {
    /// Loads a program from the cache, or compiles it and stores it there.
    fn load(&self, program: &Program) -> Result<Arc<CudaModule>> {
        let context = self.stream.context();
        let key = cubins::key(
            &self.compiler.to_string(),
            &Compiler::options(&self.architecture).join(" "),
            &program.text(),
        );
        let cached = cubins::read(&key).map(Ptx::from_binary);
        if let Some(Ok(module)) = cached.map(|cubin| context.load_module(cubin)) {
            return Ok(module);
        }
        let compiled = self.compiler.compile(program, &self.architecture).map_err(refuse)?;
        cubins::write(&key, &compiled.cubin);
        context.load_module(Ptx::from_binary(compiled.cubin)).map_err(|error| {
            refuse(format!(
                "the driver rejects a program compiled by {}: {}; \
                 expected a driver that is not older than the compiler",
                self.compiler,
                describe(error)
            ))
        })
    }
}

fn refuse(reason: String) -> Error {
    Error::Backend { backend: "cuda".into(), reason }
}

/// Error for a failed allocation of `bytes` bytes.
fn out_of(bytes: usize, error: DriverError) -> Error {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::Memory { bytes },
        _ => failed(error),
    }
}

/// Error of the driver. After most such errors the process has lost all data on the device.
fn failed(error: DriverError) -> Error {
    refuse(format!(
        "the GPU: {}; if this error repeats, the data on the GPU is lost: restart the program",
        describe(error)
    ))
}

fn describe(error: DriverError) -> String {
    let words = error.error_string().map(|words| words.to_string_lossy().into_owned());
    words.unwrap_or_else(|_| format!("{:?}", error.0))
}
