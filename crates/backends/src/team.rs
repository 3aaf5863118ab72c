//! Threads that process the tasks of a step together.
//!
//! A decode step has hundreds of parallel parts, each of which takes some ten microseconds. A
//! thread of a team posts the tasks of a part, and the team's other threads, which look at the
//! slots all the time, find them within a microsecond. Jobs of rayon take several times as long: a
//! thread allocates them, and others search several queues for them.
//!
//! Tasks may post tasks. A thread that waits for its tasks processes others meanwhile, so it may
//! suspend work of its own. No two threads wait for each other: a task that is processed on top of
//! suspended work was posted after that work had begun.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rayon::Yield;

use crate::tasks::Tasks;

/// Largest number of parts whose tasks are posted at the same time. The tasks of further parts are
/// processed by the thread that has them.
const SLOTS: usize = 4;

/// Number of attempts to find a task of the team for each attempt to find a job of rayon, which
/// takes longer.
const TASK_ATTEMPTS: usize = 16;

/// Number of attempts to find work before a thread yields the processor to other programs.
const ATTEMPTS: usize = 1024;

thread_local! {
    /// Team that this thread has joined.
    static TEAM: RefCell<Option<Arc<Team>>> = const { RefCell::new(None) };
}

/// Threads that process each other's tasks.
#[derive(Debug, Default)]
pub(crate) struct Team {
    slots: [TaskSlot; SLOTS],
    /// Number of threads that look for work and have none.
    waiting: AtomicUsize,
}

/// Slot for the tasks of one part.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TaskSlot {
    /// True from before tasks are posted until no other thread can refer to them.
    taken: AtomicBool,
    /// The posted tasks, or null. Only a thread that is counted as a visitor reads through the
    /// pointer.
    tasks: AtomicPtr<Tasks<'static>>,
    visitors: AtomicUsize,
}

impl Team {
    /// Returns the team that this thread has joined.
    pub(crate) fn current() -> Option<Arc<Self>> {
        TEAM.with_borrow(Option::clone)
    }

    /// Calls `work` while this thread is a member of the team.
    pub(crate) fn join<R>(self: &Arc<Self>, work: impl FnOnce() -> R) -> R {
        let _guard = RejoinOnDrop(TEAM.replace(Some(self.clone())));
        work()
    }

    /// Calls `task` with each index below `count`, on threads of the team, and returns after the
    /// last of these calls has returned.
    ///
    /// # Panics
    /// If a task panics, after the other tasks have been processed.
    pub(crate) fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let tasks = Tasks::new(count, task);
        if let Some(slot) = self.slots.iter().find(|slot| slot.take()) {
            let _guard = slot.post(&tasks);
            tasks.process();
            look_for_work_until(Some(self), || tasks.are_finished());
        } else {
            tasks.process();
        }
        tasks.end();
    }

    /// Returns true if a thread looks for work and has none.
    pub(crate) fn has_waiting_thread(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Processes posted tasks on a thread that looks for work. Returns false if there were none.
    fn process_posted(&self) -> bool {
        self.slots.iter().any(|slot| slot.process(&self.waiting))
    }
}

/// Guard that makes a thread a member of its previous team again.
struct RejoinOnDrop(Option<Arc<Team>>);

impl Drop for RejoinOnDrop {
    fn drop(&mut self) {
        TEAM.replace(self.0.take());
    }
}

impl TaskSlot {
    /// Reserves the slot, if it is free.
    fn take(&self) -> bool {
        !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire)
    }

    /// Posts tasks in a slot that was taken, until the guard is dropped.
    fn post<'a>(&'a self, tasks: &'a Tasks<'_>) -> WithdrawOnDrop<'a> {
        self.tasks.store(ptr::from_ref(tasks).cast_mut().cast(), Ordering::SeqCst);
        WithdrawOnDrop(self)
    }

    /// Processes the posted tasks on one of `waiting` threads. Returns false if there were none.
    fn process(&self, waiting: &AtomicUsize) -> bool {
        if self.tasks.load(Ordering::Relaxed).is_null() {
            return false;
        }
        self.visitors.fetch_add(1, Ordering::SeqCst);
        let tasks = self.tasks.load(Ordering::SeqCst);
        // SAFETY: Tasks are dropped after `WithdrawOnDrop` has set the pointer to null and has then
        // seen no visitors. All threads agree on the order of these operations, so a visitor that
        // it did not see has loaded the pointer later, and found null.
        let tasks = unsafe { tasks.as_ref() }.filter(|tasks| tasks.are_left());
        let any = tasks.is_some_and(|tasks| {
            waiting.fetch_sub(1, Ordering::Relaxed);
            let any = tasks.process();
            waiting.fetch_add(1, Ordering::Relaxed);
            any
        });
        self.visitors.fetch_sub(1, Ordering::Release);
        any
    }
}

/// Guard that withdraws the tasks of a slot, and waits until no thread refers to them. All tasks
/// must have been begun, so that visitors leave soon.
struct WithdrawOnDrop<'a>(&'a TaskSlot);

impl Drop for WithdrawOnDrop<'_> {
    fn drop(&mut self) {
        let TaskSlot { taken, tasks, visitors } = self.0;
        tasks.store(ptr::null_mut(), Ordering::SeqCst);
        while visitors.load(Ordering::SeqCst) > 0 {
            std::hint::spin_loop();
        }
        taken.store(false, Ordering::Release);
    }
}

/// Processes tasks of a team and jobs of rayon's current pool until `done` returns true, without
/// sleeping. Meanwhile this thread counts as waiting, except while it processes a task.
pub(crate) fn look_for_work_until(team: Option<&Team>, done: impl Fn() -> bool) {
    if let Some(team) = team {
        team.waiting.fetch_add(1, Ordering::Relaxed);
    }
    let mut attempts = 0;
    while !done() {
        attempts = if find_work(team, attempts) { 0 } else { attempts + 1 };
        if attempts == ATTEMPTS {
            std::thread::yield_now();
            attempts = 0;
        } else {
            std::hint::spin_loop();
        }
    }
    if let Some(team) = team {
        team.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Processes a task or a job, after a number of failed attempts. Returns false if none was found.
fn find_work(team: Option<&Team>, attempts: usize) -> bool {
    if team.is_some_and(Team::process_posted) {
        return true;
    }
    let is_turn = team.is_none() || attempts % TASK_ATTEMPTS == TASK_ATTEMPTS - 1;
    is_turn && matches!(rayon::yield_now(), Some(Yield::Executed))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Barrier;

    use super::*;

    /// Runs `work` on the first of some threads that form a team.
    fn run_in_team(threads: usize, work: impl FnOnce(&Team)) {
        let team = Arc::new(Team::default());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| look_for_work_until(Some(&team), || done.load(Ordering::Relaxed)));
            }
            let result = catch_unwind(AssertUnwindSafe(|| team.join(|| work(&team))));
            done.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|payload| resume_unwind(payload));
        });
    }

    /// Number of calls of the tasks with each index, at two depths.
    fn count_calls(team: &Team, outer: usize, inner: usize) -> Vec<usize> {
        let calls: Vec<AtomicUsize> = (0..outer * inner).map(|_| AtomicUsize::new(0)).collect();
        team.run(outer, &|i| {
            team.run(inner, &|j| {
                calls[i * inner + j].fetch_add(1, Ordering::Relaxed);
            });
        });
        calls.into_iter().map(AtomicUsize::into_inner).collect()
    }

    /// With more nested parts than slots, some are processed by their own threads.
    #[test]
    fn each_task_is_processed_once_at_any_depth() {
        run_in_team(SLOTS + 2, |team| {
            for round in 0..1000 {
                let (outer, inner) = (round % 9, 1 + round % 5);
                assert!(count_calls(team, outer, inner).iter().all(|&calls| calls == 1));
            }
        });
    }

    /// Each task waits for a task of the other thread.
    #[test]
    fn tasks_run_at_the_same_time() {
        run_in_team(2, |team| {
            for _ in 0..100 {
                let barrier = Barrier::new(2);
                team.run(2, &|_| {
                    barrier.wait();
                });
            }
        });
    }

    /// Threads that process tasks do not count as waiting, and those that look for tasks do.
    #[test]
    fn a_team_knows_whether_a_thread_waits() {
        run_in_team(2, |team| {
            let barrier = Barrier::new(2);
            team.run(2, &|_| {
                barrier.wait();
                assert!(!team.has_waiting_thread());
                barrier.wait();
            });
            while !team.has_waiting_thread() {
                std::thread::yield_now();
            }
        });
    }

    #[test]
    #[should_panic(expected = "task 5 fails")]
    fn a_panic_of_a_task_reaches_the_thread_that_posted_it() {
        run_in_team(3, |team| team.run(9, &|i| assert!(i != 5, "task {i} fails")));
    }

    /// The slots are free again after panics.
    #[test]
    fn a_team_works_after_panics() {
        run_in_team(2, |team| {
            for _ in 0..2 * SLOTS {
                let failing = || team.run(2, &|_| panic!("expected"));
                assert!(catch_unwind(AssertUnwindSafe(failing)).is_err());
            }
            assert!(team.slots.iter().all(|slot| !slot.taken.load(Ordering::Relaxed)));
            assert_eq!(count_calls(team, 3, 3), [1; 9]);
        });
    }

    #[test]
    fn threads_leave_a_team_for_the_one_before() {
        let (outer, inner) = (Arc::new(Team::default()), Arc::new(Team::default()));
        let is_current =
            |team: &Arc<Team>| Team::current().is_some_and(|it| Arc::ptr_eq(&it, team));
        outer.join(|| {
            inner.join(|| assert!(is_current(&inner)));
            assert!(is_current(&outer));
        });
        assert!(Team::current().is_none());
    }
}
