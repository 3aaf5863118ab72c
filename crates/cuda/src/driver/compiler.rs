//! Finds NVRTC and compiles programs with it.

use std::env;
use std::ffi::{CStr, CString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::{result, sys};

use crate::Program;

/// Environment variable that names the folder of NVRTC's libraries.
const FOLDER: &str = "VATTENTION_NVRTC";

/// NVIDIA's compiler of kernels, NVRTC, which needs neither a GPU nor a driver.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    version: (i32, i32),
}

/// Output of the compiler for one program.
#[derive(Clone, Debug)]
pub struct CompiledProgram {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// Output of the compiler and its assembler: registers, stack and spills of each kernel.
    pub log: String,
}

impl Compiler {
    /// Finds NVRTC in the folder that `VATTENTION_NVRTC` names. Without the variable it searches
    /// the system's library path, CUDA's usual folder and the installed Python packages.
    ///
    /// # Errors
    /// A description of what is missing and where.
    pub fn find() -> Result<Self, String> {
        match env::var_os(FOLDER).map(PathBuf::from) {
            Some(folder) if !preload(&folder) => {
                return Err(format!("{FOLDER}: no libnvrtc.so in {}", folder.display()));
            }
            Some(_) => {}
            None if is_present() => {}
            None => {
                folders().iter().find(|folder| preload(folder)).ok_or_else(|| {
                    format!(
                        "no NVRTC: libnvrtc.so was not found; \
                         install CUDA 12 or 13, or `pip install nvidia-cuda-nvrtc`, \
                         or name its folder in {FOLDER}"
                    )
                })?;
            }
        }
        if !is_present() {
            return Err(format!("no NVRTC 12 or 13 in {FOLDER}"));
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is loaded, and the function writes two numbers.
        let version = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        version.result().map_err(|error| format!("NVRTC: {error}"))?;
        Ok(Self { version: (major, minor) })
    }

    /// Options of the compiler for an architecture.
    pub(super) fn options(architecture: &str) -> [String; 3] {
        [
            format!("--gpu-architecture={architecture}"),
            "--std=c++17".into(),
            "--ptxas-options=-v".into(),
        ]
    }

    /// Compiles a program for an architecture such as `sm_90`.
    ///
    /// # Errors
    /// The output of the compiler.
    pub fn compile(
        &self,
        program: &Program,
        architecture: &str,
    ) -> Result<CompiledProgram, String> {
        let name = program.source.name;
        let options = Self::options(architecture);
        let text = CString::new(program.text()).map_err(|error| format!("{name}: {error}"))?;
        let file = CString::new(format!("{name}.cu")).map_err(|error| error.to_string())?;
        let job = CompileJob::new(&text, &file).map_err(|error| format!("NVRTC: {error}"))?;
        // SAFETY: the job's program exists until it is dropped.
        let compiled = unsafe { result::compile_program(job.0, &options) };
        let log = job.log();
        compiled
            .map_err(|error| format!("NVRTC refuses {name} for {architecture}: {error}\n{log}"))?;
        let cubin = job.cubin().map_err(|error| format!("NVRTC: {error}"))?;
        Ok(CompiledProgram { cubin, log })
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVRTC {}.{}", self.version.0, self.version.1)
    }
}

/// A program handle of NVRTC.
struct CompileJob(sys::nvrtcProgram);

impl CompileJob {
    fn new(text: &CStr, file: &CStr) -> Result<Self, result::NvrtcError> {
        result::create_program(text, Some(file)).map(Self)
    }

    fn log(&self) -> String {
        // SAFETY: the program exists.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> =
            log.into_iter().map(|byte| byte as u8).take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut size = 0;
        // SAFETY: the program exists, and the function writes one size.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) }.result()?;
        let mut cubin = vec![0_u8; size];
        // SAFETY: the vector has the size that NVRTC reported.
        unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) }.result()?;
        Ok(cubin)
    }
}

impl Drop for CompileJob {
    fn drop(&mut self) {
        // SAFETY: the program exists, and nothing uses it afterwards. A failure leaks it.
        let _ = unsafe { result::destroy_program(self.0) };
        self.0 = ptr::null_mut();
    }
}

fn is_present() -> bool {
    // SAFETY: the call loads NVRTC's library, whose initialisers are NVIDIA's.
    unsafe { sys::is_culib_present() }
}

/// Loads NVRTC from a folder and never unloads it, so that later loads by name find this copy. Its
/// built-in functions are loaded first, because NVRTC loads them by name too.
fn preload(folder: &Path) -> bool {
    let load = |prefix: &str| {
        let found = libraries(folder, prefix);
        found.iter().any(|path| {
            // SAFETY: the initialisers of these libraries are NVIDIA's.
            unsafe { libloading::Library::new(path) }.map(std::mem::forget).is_ok()
        })
    };
    load("libnvrtc-builtins.so") && load("libnvrtc.so")
}

/// Files of a folder whose names begin with `prefix`.
fn libraries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let named = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    entries(folder).into_iter().filter(named).collect()
}

/// Usual folders of CUDA and of NVIDIA's Python packages.
fn folders() -> Vec<PathBuf> {
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    let prefixes = env::var_os("VIRTUAL_ENV").map(PathBuf::from).into_iter().chain(home);
    let prefixes = prefixes.chain(["/usr/local".into(), "/usr".into()]);
    let pythons = prefixes.flat_map(|prefix| entries(&prefix.join("lib")));
    let packages = pythons.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    });
    let of_python = packages.flat_map(|python| {
        ["site-packages", "dist-packages"]
            .into_iter()
            .flat_map(|packages| ["cu13/lib", "cuda_nvrtc/lib"].map(|lib| (packages, lib)))
            .map(|(packages, lib)| python.join(packages).join("nvidia").join(lib))
            .collect::<Vec<_>>()
    });
    std::iter::once("/usr/local/cuda/lib64".into()).chain(of_python).collect()
}

/// Sorted entries of a folder; empty if the folder cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = read.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
