//! Threads among which work is divided.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs tasks on several threads, such as those of a program that embeds the library.
pub trait TaskRunner: Debug + Send + Sync {
    /// Calls `task` with each index below `count`, on any threads, and returns after the last of
    /// these calls has returned. An index that is left out is processed afterwards, on the calling
    /// thread, and an index that is repeated is processed once.
    ///
    /// A panic of a task must reach the caller of this method.
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync));

    /// Returns true if a thread waits for tasks and would find new ones at once. Work of a few
    /// microseconds is not worth dividing otherwise. By default, no such thread is known.
    fn has_waiting_thread(&self) -> bool {
        false
    }
}

/// Threads among which the work for one KV head may be divided: the calling thread alone, or the
/// threads of a task runner.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepThreads<'a>(Option<&'a dyn TaskRunner>);

impl<'a> StepThreads<'a> {
    /// Creates the threads of a task runner.
    pub const fn new(runner: &'a dyn TaskRunner) -> Self {
        Self(Some(runner))
    }

    /// Returns true if one of the threads [waits for tasks](TaskRunner::has_waiting_thread).
    pub fn has_waiting_thread(&self) -> bool {
        self.0.is_some_and(TaskRunner::has_waiting_thread)
    }

    /// Applies `f` to each piece of work, and returns the results in the order of the pieces.
    pub fn map<T: Send, R: Send>(&self, work: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
        match self.0 {
            Some(runner) if work.len() > 1 => run_tasks(runner, work, f),
            _ => work.into_iter().map(f).collect(),
        }
    }
}

/// Applies `f` to each piece of work on the runner's threads.
fn run_tasks<T: Send, R: Send>(
    runner: &dyn TaskRunner,
    work: Vec<T>,
    f: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let count = work.len();
    let pieces: Vec<Mutex<Option<T>>> = work.into_iter().map(|piece| Some(piece).into()).collect();
    let results: Vec<Mutex<Option<R>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let task = |index: usize| {
        let Some(piece) = pieces.get(index).and_then(|piece| lock(piece).take()) else { return };
        let result = f(piece);
        *lock(&results[index]) = Some(result);
    };
    runner.run(count, &task);
    (0..count).for_each(&task);
    let take =
        |result: Mutex<Option<R>>| result.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().map(|result| take(result).expect("every piece is processed")).collect()
}

/// Locks a value, even if a thread has panicked while it held the lock.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs tasks on a thread each, and leaves out or repeats some.
    #[derive(Debug)]
    struct Careless {
        left_out: usize,
        repeated: usize,
    }

    impl TaskRunner for Careless {
        fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
            std::thread::scope(|scope| {
                for index in (0..count).chain([self.repeated, count + 7]) {
                    if index != self.left_out {
                        scope.spawn(move || task(index));
                    }
                }
            });
        }
    }

    #[test]
    fn each_piece_is_processed_once_and_in_its_place() {
        let runner = Careless { left_out: 3, repeated: 5 };
        let calls = Mutex::new(0);
        let squares = StepThreads::new(&runner).map((0..9).collect(), |x: u64| {
            *lock(&calls) += 1;
            x * x
        });
        assert_eq!(squares, [0, 1, 4, 9, 16, 25, 36, 49, 64]);
        assert_eq!(*lock(&calls), 9);
    }
}
