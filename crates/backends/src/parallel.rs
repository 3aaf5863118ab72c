//! Parallel work on rayon's threads, which do not sleep until it is done.
//!
//! A thread of `rayon::join` sleeps while it waits for the last task, if the tasks do not divide
//! evenly. In a virtual machine it takes tens of microseconds to wake, as long as a KV head takes.
//! So the threads here take the next task in turn, and a thread that finds none looks for other
//! work until the last task is done. The threads of a [`Team`] do not even need rayon's queues.

use vattention_core::step::{StepThreads, TaskRunner};

use crate::tasks::Tasks;
use crate::team::{Team, look_for_work_until};

/// The threads of rayon's current pool. Tasks may divide their work among them again.
#[derive(Debug)]
pub(crate) struct RayonThreads;

impl TaskRunner for RayonThreads {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        if let Some(team) = Team::current() {
            return team.run(count, task);
        }
        let tasks = Tasks::new(count, task);
        rayon::scope(|scope| {
            let helpers = rayon::current_num_threads().min(count).saturating_sub(1);
            for _ in 0..helpers {
                scope.spawn(|_| {
                    tasks.process();
                });
            }
            tasks.process();
            look_for_work_until(None, || tasks.are_finished());
        });
        tasks.end();
    }

    fn has_waiting_thread(&self) -> bool {
        Team::current().is_some_and(|team| team.has_waiting_thread())
    }
}

/// Applies `f` to each piece of work on the threads of rayon's current pool, or on those of the
/// step that this thread is a part of ([`keep_awake`](crate::keep_awake)).
///
/// # Panics
/// If `f` panics for a piece.
pub fn process<T: Send>(pieces: Vec<T>, f: impl Fn(T) + Sync) {
    StepThreads::new(&RayonThreads).map(pieces, f);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::awake::keep_awake;

    const THREADS: StepThreads<'static> = StepThreads::new(&RayonThreads);

    #[test]
    fn results_are_in_the_order_of_the_pieces_at_any_depth() {
        let row = |i: usize| THREADS.map((0..7).collect(), |j: usize| 10 * i + j);
        let found = THREADS.map((0..50).collect(), row);
        let expected: Vec<Vec<usize>> =
            (0..50).map(|i| (0..7).map(|j| 10 * i + j).collect()).collect();
        assert_eq!(found, expected);
        assert!(THREADS.map(Vec::<usize>::new(), |i| i).is_empty());
        assert_eq!(keep_awake(|| THREADS.map((0..50).collect(), row)), expected);
    }

    #[test]
    #[should_panic(expected = "a piece fails")]
    fn a_panic_of_a_piece_reaches_the_caller() {
        THREADS.map((0..20).collect(), |i: usize| assert!(i != 13, "a piece fails"));
    }
}
