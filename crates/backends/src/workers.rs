//! Threads that process KV heads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use vattention_core::{
    Error, Result,
    step::{TaskRunner, Threads, map_tasks},
};

use crate::awake::keep_awake;
use crate::parallel::map_parallel;

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
    pub(crate) fn threads(&self) -> Threads<'_> {
        let count = match self {
            Self::Serial | Self::Embedder(_) => 1,
            Self::Global => rayon::current_num_threads(),
            Self::Own(pool) => pool.current_num_threads(),
        };
        if count > 1 { Threads::of(&RayonThreads) } else { Threads::default() }
    }

    /// Applies `f` to each piece of work, and returns the results in the order of the pieces.
    pub fn map<T: Send, R: Send>(&self, work: Vec<T>, f: impl Fn(T) -> R + Send + Sync) -> Vec<R> {
        match self {
            Self::Serial => work.into_iter().map(f).collect(),
            Self::Global => map_parallel(work, f),
            Self::Own(pool) => pool.install(|| map_parallel(work, f)),
            Self::Embedder(runner) => map_tasks(&**runner, work, f),
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

/// The threads of rayon's current pool.
#[derive(Debug)]
struct RayonThreads;

impl TaskRunner for RayonThreads {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        map_parallel((0..count).collect(), task);
    }
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
