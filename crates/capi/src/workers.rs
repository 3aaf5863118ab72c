//! Threads that process KV heads: the library's, or those of the engine.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

use vattention::backends::{Cpu, TaskRunner, Workers};

use crate::pointers::{read_struct, versioned_struct};
use crate::status::CallError;

/// A task that an engine's thread calls with `data` and an index.
///
/// Thread safety: any thread. A call with an index that was processed already, or after
/// va_parallel_for has returned, does nothing.
pub type va_task = Option<unsafe extern "C" fn(data: *mut c_void, index: usize)>;

/// A function of the engine that calls `task(data, index)` with each index below `count`, on any
/// threads, and returns after the last of these calls. The library processes indices that it leaves
/// out. It must not throw a C++ exception.
pub type va_parallel_for = Option<
    unsafe extern "C" fn(context: *mut c_void, count: usize, task: va_task, data: *mut c_void),
>;

/// Threads that process KV heads, or the sequences of a batch. Results do not depend on them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct va_workers {
    /// sizeof(va_workers).
    pub size: usize,
    /// Number of the library's threads: 0 means all cores, 1 the calling thread, another number
    /// a pool that all handles share. It must be 0 with `parallel_for`.
    pub threads: usize,
    /// Function that runs tasks on the engine's threads, or NULL. It is called by the thread that
    /// calls the library, and not from within a task.
    pub parallel_for: va_parallel_for,
    /// First argument of `parallel_for`. It must be valid, and usable on any thread, until the
    /// handle and its forks have been freed.
    pub context: *mut c_void,
}

versioned_struct!(va_workers, context: *mut c_void);

/// The backend of all handles, which share its threads.
pub(crate) static CPU: LazyLock<Cpu> = LazyLock::new(Cpu::default);

/// Converts workers; a null pointer means all cores.
///
/// # Safety
/// The function and the context of valid `workers` are as documented there.
pub(crate) unsafe fn workers_from(
    workers: *const va_workers,
    argument: &str,
) -> Result<Workers, CallError> {
    if workers.is_null() {
        return Ok(Workers::Global);
    }
    // SAFETY: the caller vouches for the struct.
    let va_workers { threads, parallel_for, context, .. } =
        unsafe { read_struct(workers, argument) }?;
    if parallel_for.is_none() {
        return Ok(CPU.workers((threads > 0).then_some(threads))?);
    }
    if threads > 0 {
        let message =
            format!("{argument}: expected threads = 0 with parallel_for, found {threads}");
        return Err(CallError::argument(message));
    }
    Ok(Workers::Embedder(Arc::new(EngineThreads { parallel_for, context })))
}

/// Threads of the engine.
struct EngineThreads {
    parallel_for: va_parallel_for,
    context: *mut c_void,
}

// SAFETY: the engine guarantees that function and context can be used on any thread.
unsafe impl Send for EngineThreads {}
// SAFETY: the engine guarantees that function and context can be used on several threads.
unsafe impl Sync for EngineThreads {}

impl fmt::Debug for EngineThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineThreads")
    }
}

impl TaskRunner for EngineThreads {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let Some(parallel_for) = self.parallel_for else { return };
        let job = RunningJob::publish(task);
        // SAFETY: the engine's function may be called with its context and a task.
        unsafe { parallel_for(self.context, count, Some(run_task), job.data()) };
        if let Some(panic) = job.finish() {
            resume_unwind(panic);
        }
    }
}

/// A task with the lifetime of its job erased.
struct ErasedTask(*const (dyn Fn(usize) + Sync));

// SAFETY: the task is `Sync`, and `RunningJob` waits for its calls.
unsafe impl Send for ErasedTask {}
// SAFETY: the task is `Sync`, and `RunningJob` waits for its calls.
unsafe impl Sync for ErasedTask {}

/// Tasks of one call of `va_parallel_for`.
struct EngineJob {
    task: ErasedTask,
    progress: Mutex<JobProgress>,
    is_idle: Condvar,
}

#[derive(Default)]
struct JobProgress {
    /// Number of tasks that are running.
    running: usize,
    /// True if no task may begin any more.
    closed: bool,
    panic: Option<Box<dyn Any + Send>>,
}

/// Jobs by the numbers that engines get as `data`, so that a task of a job that has ended finds
/// none.
static JOBS: RwLock<BTreeMap<usize, Arc<EngineJob>>> = RwLock::new(BTreeMap::new());

static NEXT_JOB: AtomicUsize = AtomicUsize::new(1);

/// A job in the table. It is closed when it is dropped.
struct RunningJob {
    number: usize,
    job: Arc<EngineJob>,
}

impl RunningJob {
    fn publish(task: &(dyn Fn(usize) + Sync)) -> Self {
        // SAFETY: this extends a lifetime. `close`, which `drop` calls, returns only after the last
        // call of the task.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        let (progress, is_idle) = (Mutex::default(), Condvar::new());
        let job = Arc::new(EngineJob { task: ErasedTask(task), progress, is_idle });
        let number = NEXT_JOB.fetch_add(1, Ordering::Relaxed);
        let mut jobs = JOBS.write().unwrap_or_else(PoisonError::into_inner);
        jobs.insert(number, job.clone());
        Self { number, job }
    }

    fn data(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.number)
    }

    /// Closes the job, and returns the panic of a task.
    fn finish(self) -> Option<Box<dyn Any + Send>> {
        self.close();
        self.job.lock().panic.take()
    }

    /// Waits until no task runs, and lets no other begin.
    fn close(&self) {
        JOBS.write().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        let mut progress = self.job.lock();
        progress.closed = true;
        while progress.running > 0 {
            progress = self.job.is_idle.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.close();
    }
}

impl EngineJob {
    fn lock(&self) -> MutexGuard<'_, JobProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, index: usize) {
        let mut progress = self.lock();
        if progress.closed {
            return;
        }
        progress.running += 1;
        drop(progress);
        // SAFETY: the task lives until `RunningJob::close` has seen that no task runs.
        let task = unsafe { &*self.task.0 };
        let result = catch_unwind(AssertUnwindSafe(|| task(index)));
        let mut progress = self.lock();
        progress.running -= 1;
        if let Err(panic) = result {
            progress.panic.get_or_insert(panic);
        }
        self.is_idle.notify_all();
    }
}

/// Task that engines call.
unsafe extern "C" fn run_task(data: *mut c_void, index: usize) {
    let job = JOBS.read().unwrap_or_else(PoisonError::into_inner).get(&data.addr()).cloned();
    if let Some(job) = job {
        job.run(index);
    }
}

#[cfg(test)]
mod tests;
