//! Loads compiled programs and calls their kernels.
#![allow(unsafe_code, reason = "kernels are C++")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use libloading::Library;
use vattention_core::Result;
use vattention_cuda::{Argument, Kernel};

use crate::{ThreadSchedule, fail};

/// Parameters of a launch; laid out as in `emulation.h`.
#[repr(C)]
struct Launch {
    blocks: [u32; 2],
    threads: u32,
    arguments: u32,
    values: *const *const c_void,
    kinds: *const c_char,
    thread_order: u64,
    block_order: u64,
}

/// Entry point of a kernel, which returns an error message or null.
type EntryPoint = unsafe extern "C" fn(*const Launch) -> *const c_char;

/// A loaded library of kernels. It runs one launch at a time, because fibers and shared memory are
/// variables of the library.
#[derive(Debug)]
pub(crate) struct KernelLibrary {
    library: Library,
    running: Mutex<()>,
}

/// Libraries that this process has loaded. A library has one copy of its variables in a process.
static LOADED: LazyLock<Mutex<HashMap<PathBuf, Arc<KernelLibrary>>>> =
    LazyLock::new(Mutex::default);

impl KernelLibrary {
    /// Loads the library at a path, compiled by [`HostCompiler`](crate::compiler::HostCompiler).
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = loaded.get(path) {
            return Ok(Arc::clone(library));
        }
        // SAFETY: a library of kernels runs no code when it is loaded.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|error| fail(error.to_string()))?;
        let library = Arc::new(Self { library, running: Mutex::default() });
        loaded.insert(path.to_owned(), Arc::clone(&library));
        Ok(library)
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// The memory that the kernel accesses through the arguments is valid.
    pub(crate) unsafe fn run<M>(&self, kernel: &Kernel<M>, schedule: ThreadSchedule) -> Result<()> {
        let Kernel { name, grid, arguments, .. } = kernel;
        let values: Vec<*const c_void> = arguments.iter().map(value).collect();
        let kinds: Vec<u8> = arguments.iter().map(kind).collect();
        let launch = Launch {
            blocks: grid.blocks,
            threads: grid.threads,
            arguments: arguments.len() as u32,
            values: values.as_ptr(),
            kinds: kinds.as_ptr().cast(),
            thread_order: schedule.threads.code(),
            block_order: schedule.blocks.code(),
        };
        let symbol = format!("emulated_{name}");
        // SAFETY: the macro `KERNEL` exports this name with this type.
        let entry = unsafe { self.library.get::<EntryPoint>(symbol.as_bytes()) };
        let entry = entry.map_err(|_| fail(format!("there is no kernel {name}")))?;
        let _alone = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the launch outlives the call, the entry compares the arguments with the
        // kernel's, and the caller vouches for what they point to.
        let fault = unsafe { entry(&raw const launch) };
        if fault.is_null() {
            return Ok(());
        }
        // SAFETY: the string belongs to the library, which writes to it only under the lock.
        let fault = unsafe { CStr::from_ptr(fault) };
        Err(fail(format!("kernel {name}: {}", fault.to_string_lossy())))
    }
}

/// Address of the value of an argument.
fn value(argument: &Argument) -> *const c_void {
    match argument {
        Argument::Address(x) | Argument::U64(x) => (&raw const *x).cast(),
        Argument::U32(x) => (&raw const *x).cast(),
        Argument::F32(x) => (&raw const *x).cast(),
    }
}

fn kind(argument: &Argument) -> u8 {
    match argument {
        Argument::Address(_) => b'a',
        Argument::U32(_) => b'u',
        Argument::U64(_) => b'U',
        Argument::F32(_) => b'f',
    }
}
