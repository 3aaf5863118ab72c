//! NVIDIA GPUs, through their driver.
//!
//! | file       | what                                                      |
//! |------------|-----------------------------------------------------------|
//! | `compiler` | NVRTC: finding it, and letting it compile                 |
//! | `cubins`   | what has been compiled, kept on disk                      |
//! | `memory`   | memory of the device, and of the host                     |

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

pub use self::compiler::{Compiled, Compiler};
pub use self::memory::DriverMemory;
use crate::{Argument, Device, Kernel, Program};

/// The least compute capability that the kernels are written for.
const LEAST: (i32, i32) = (8, 0);

/// The first GPU of this machine.
#[derive(Clone, Debug)]
pub struct Driver {
    gpu: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    name: String,
    /// `sm_90`, for one.
    architecture: String,
    /// The default stream, the only one that is used.
    stream: Arc<CudaStream>,
    compiler: Compiler,
    modules: Mutex<HashMap<Program, Arc<CudaModule>>>,
}

/// Kernels that are started together.
pub struct DriverGraph(Mutex<CudaGraph>);

// SAFETY: the driver's graphs may be used by one thread after the other, which the lock sees to.
unsafe impl Send for DriverGraph {}
// SAFETY: as above.
unsafe impl Sync for DriverGraph {}

impl std::fmt::Debug for DriverGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DriverGraph")
    }
}

impl Driver {
    /// The first GPU, opened once in a process.
    ///
    /// # Errors
    /// [`Error::Backend`] that says what is missing: the driver, a GPU, one that is new enough, or
    /// the compiler NVRTC.
    pub fn open() -> Result<Self> {
        static DRIVER: LazyLock<Result<Driver, String>> = LazyLock::new(open);
        DRIVER.clone().map_err(refuse)
    }
}

fn open() -> Result<Driver, String> {
    // SAFETY: it loads the driver's library, whose initialisers are NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver: its library libcuda.so was not found".into());
    }
    let driver = |error: DriverError| format!("the NVIDIA driver: {}", describe(error));
    if CudaContext::device_count().map_err(driver)? == 0 {
        return Err("the NVIDIA driver knows no GPU".into());
    }
    let context = CudaContext::new(0).map_err(driver)?;
    // SAFETY: all work on memory is on one stream, in order, and needs no events.
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
    let gpu = Opened {
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
        let Opened { name, architecture, compiler, .. } = &*self.gpu;
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
        // SAFETY: the caller answers for the arguments, in the words of `Device::launch`.
        unsafe { launch(&self.gpu.stream, kernel) }.map_err(failed)
    }

    /// Captures a stream of its own: on the one that works, others may be starting kernels.
    unsafe fn record(&self, kernels: &[Kernel<Arc<CudaModule>>]) -> Result<DriverGraph> {
        let stream = self.gpu.stream.context().new_stream().map_err(failed)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(failed)?;
        // SAFETY: the caller answers for the arguments, in the words of `Device::record`.
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
        // SAFETY: both are of this context, and the graph is locked.
        unsafe { cudarc::driver::result::graph::launch(graph.cu_graph_exec(), stream.cu_stream()) }
            .map_err(failed)
    }
}

/// Starts a kernel on a stream.
///
/// # Safety
/// As [`Device::launch`].
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
    // SAFETY: the caller answers for the arguments.
    unsafe { launch.launch(grid) }.map(drop)
}

impl Opened {
    /// Loads what was compiled before, here or in another process, or compiles it.
    fn load(&self, program: &Program) -> Result<Arc<CudaModule>> {
        let context = self.stream.context();
        let key = cubins::key(
            &self.compiler.to_string(),
            &Compiler::options(&self.architecture).join(" "),
            &program.text(),
        );
        let kept = cubins::read(&key).map(Ptx::from_binary);
        if let Some(Ok(module)) = kept.map(|cubin| context.load_module(cubin)) {
            return Ok(module);
        }
        let compiled = self.compiler.compile(program, &self.architecture).map_err(refuse)?;
        cubins::write(&key, &compiled.cubin);
        context.load_module(Ptx::from_binary(compiled.cubin)).map_err(|error| {
            refuse(format!(
                "the driver refuses what {} compiled: {}; is it newer than the driver?",
                self.compiler,
                describe(error)
            ))
        })
    }
}

fn refuse(reason: String) -> Error {
    Error::Backend { backend: "cuda".into(), reason }
}

/// Why `bytes` could not be allocated.
fn out_of(bytes: usize, error: DriverError) -> Error {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::Memory { bytes },
        _ => failed(error),
    }
}

/// After most errors of a driver everything on the device is lost to the process.
fn failed(error: DriverError) -> Error {
    refuse(format!(
        "the GPU: {}; if this goes on, what was on it is lost: start the program again",
        describe(error)
    ))
}

fn describe(error: DriverError) -> String {
    let words = error.error_string().map(|words| words.to_string_lossy().into_owned());
    words.unwrap_or_else(|_| format!("{:?}", error.0))
}
