//! Parallel work on rayon's threads, which do not sleep until it is done.
//!
//! A thread of `rayon::join` sleeps while it waits for the last task, if the tasks do not divide
//! evenly. In a virtual machine it takes tens of microseconds to wake, as long as a KV head takes.
//! So the threads here take the next task in turn, and a thread that finds none looks for other
//! jobs until the last task is done.

use std::sync::atomic::{AtomicUsize, Ordering};

use vattention_core::step::TaskRunner;

use crate::awake::look_for_jobs_until;

/// The threads of rayon's current pool. Tasks may divide their work among them again.
#[derive(Debug)]
pub(crate) struct RayonThreads;

impl TaskRunner for RayonThreads {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let process = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                let _counted = CountOnDrop(&done);
                task(index);
            }
        };
        rayon::scope(|scope| {
            let helpers = rayon::current_num_threads().min(count).saturating_sub(1);
            for _ in 0..helpers {
                scope.spawn(|_| process());
            }
            process();
            look_for_jobs_until(|| done.load(Ordering::Acquire) == count);
        });
    }
}

/// Counts a task when dropped, even if it panics: the scope then passes the panic on.
struct CountOnDrop<'a>(&'a AtomicUsize);

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use vattention_core::step::StepThreads;

    use super::*;

    const THREADS: StepThreads<'static> = StepThreads::new(&RayonThreads);

    #[test]
    fn results_are_in_the_order_of_the_pieces_at_any_depth() {
        let row = |i: usize| THREADS.map((0..7).collect(), |j: usize| 10 * i + j);
        let found = THREADS.map((0..50).collect(), row);
        let expected: Vec<Vec<usize>> =
            (0..50).map(|i| (0..7).map(|j| 10 * i + j).collect()).collect();
        assert_eq!(found, expected);
        assert!(THREADS.map(Vec::<usize>::new(), |i| i).is_empty());
    }

    #[test]
    #[should_panic(expected = "a piece fails")]
    fn a_panic_of_a_piece_reaches_the_caller() {
        THREADS.map((0..20).collect(), |i: usize| assert!(i != 13, "a piece fails"));
    }
}
