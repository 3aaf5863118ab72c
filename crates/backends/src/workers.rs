//! Threads that process KV heads.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use vattention_core::{
    Error, Result,
    step::{StepThreads, TaskRunner},
};

use crate::awake::keep_awake;
use crate::parallel::RayonThreads;

/// Threads that process independent pieces of work.
#[derive(Clone, Debug)]
pub enum Workers {
    /// Serially, on the calling thread.
    Serial,
    /// In parallel, on rayon's global pool.
    Global,
    /// In parallel, on this pool.
    Own(Arc<ThreadPool>),
    /// In parallel, on threads of the program that embeds the library.
    Embedder(Arc<dyn TaskRunner>),
}

impl Workers {
    /// Threads among which the work for one KV head may be divided, within [`map`](Self::map).
    /// Threads of the embedder process whole KV heads.
    pub(crate) fn threads(&self) -> StepThreads<'_> {
        let count = match self {
            Self::Serial | Self::Embedder(_) => 1,
            Self::Global => rayon::current_num_threads(),
            Self::Own(pool) => pool.current_num_threads(),
        };
        if count > 1 { StepThreads::new(&RayonThreads) } else { StepThreads::default() }
    }

    /// Applies `f` to each piece of work, and returns the results in the order of the pieces.
    pub fn map<T: Send, R: Send>(&self, work: Vec<T>, f: impl Fn(T) -> R + Send + Sync) -> Vec<R> {
        match self {
            Self::Serial => work.into_iter().map(f).collect(),
            Self::Global => StepThreads::new(&RayonThreads).map(work, f),
            Self::Own(pool) => pool.install(|| StepThreads::new(&RayonThreads).map(work, f)),
            Self::Embedder(runner) => map_on_embedder(&**runner, work, f),
        }
    }

    /// Runs `work`, which calls [`map`](Self::map) many times, while the threads look for pieces
    /// without sleeping ([`keep_awake`]). Threads of the embedder are not affected.
    pub fn keep_awake<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self {
            Self::Serial | Self::Embedder(_) => work(),
            Self::Global => keep_awake(work),
            Self::Own(pool) => pool.install(|| keep_awake(work)),
        }
    }
}

thread_local! {
    /// True while this thread processes a task of an embedder's runner.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as processing a task, until it is dropped.
struct TaskMark {
    before: bool,
}

impl TaskMark {
    fn set() -> Self {
        Self { before: IN_TASK.replace(true) }
    }
}

impl Drop for TaskMark {
    fn drop(&mut self) {
        IN_TASK.set(self.before);
    }
}

/// Applies `f` to each piece of work on an embedder's threads. Work that a task divides is
/// processed by the task's thread, because a thread pool that waits for itself might wait forever.
fn map_on_embedder<T: Send, R: Send>(
    runner: &dyn TaskRunner,
    work: Vec<T>,
    f: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let threads = if IN_TASK.get() { StepThreads::default() } else { StepThreads::new(runner) };
    threads.map(work, |piece| {
        let _mark = TaskMark::set();
        f(piece)
    })
}

/// Thread pools of a backend, one for each requested number of threads.
#[derive(Debug, Default)]
pub struct Pools {
    pools: Mutex<BTreeMap<usize, Arc<ThreadPool>>>,
}

impl Pools {
    /// Returns the workers for [`Options::threads`](vattention_core::Options::threads). A single
    /// thread is the caller's: waking another one takes longer than a short step.
    ///
    /// # Errors
    /// [`Error::Backend`] if the threads cannot be started.
    pub fn workers(&self, backend: &str, threads: Option<usize>) -> Result<Workers> {
        match threads {
            None => Ok(Workers::Global),
            Some(1) => Ok(Workers::Serial),
            Some(threads) => self.pool(threads).map_err(|reason| {
                let backend = backend.into();
                Error::Backend { backend, reason }
            }),
        }
    }

    fn pool(&self, threads: usize) -> Result<Workers, String> {
        if threads == 0 {
            return Err("threads: expected at least 1, got 0".into());
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&threads) {
            return Ok(Workers::Own(pool.clone()));
        }
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = Arc::new(pool.map_err(|error| error.to_string())?);
        pools.insert(threads, pool.clone());
        Ok(Workers::Own(pool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails if it is called within a task.
    #[derive(Debug)]
    struct NotNested;

    impl TaskRunner for NotNested {
        fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
            assert!(!IN_TASK.get(), "a task waits for the runner");
            (0..count).for_each(task);
        }
    }

    #[test]
    fn work_within_a_task_stays_on_its_thread() {
        let sums =
            map_on_embedder(&NotNested, vec![vec![1, 2, 3], vec![4, 5]], |parts: Vec<u32>| {
                map_on_embedder(&NotNested, parts, |x| 10 * x).into_iter().sum::<u32>()
            });
        assert_eq!(sums, [60, 90]);
        assert!(!IN_TASK.get());
    }
}
