//! Threads that look for work instead of sleeping.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::team::{Team, look_for_work_until};

/// Longest time that a step waits for threads to join it.
const PATIENCE: Duration = Duration::from_micros(50);

/// Threads may join the step, which has not begun.
const OPEN: u8 = 0;
/// The step is running.
const BEGUN: u8 = 1;
const DONE: u8 = 2;

/// Runs `work` on a thread of rayon's current pool, while the other threads look for its tasks and
/// jobs without sleeping. Tasks are those of [`process`](crate::process) and
/// [`Workers::map`](crate::Workers::map).
///
/// The decode step of a model has hundreds of parallel parts of some microseconds each: products,
/// and the attention of each layer. A thread that sleeps between them takes longer to wake than to
/// compute its share of a part.
///
/// A thread that looks for work suspends the work that it interrupted, until the step ends. Threads
/// therefore join before the step has begun, or not at all: no step waits for itself, and of two
/// steps only the earlier one can wait for the other. A step within a step has its threads.
pub fn keep_awake<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    if Team::current().is_some() {
        return work();
    }
    let (state, joined) = (AtomicU8::new(OPEN), AtomicUsize::new(0));
    let team = &Arc::new(Team::default());
    rayon::scope(|scope| {
        let others = rayon::current_num_threads() - 1;
        for _ in 0..others {
            scope.spawn(|_| {
                if state.load(Ordering::SeqCst) == OPEN {
                    joined.fetch_add(1, Ordering::Relaxed);
                    let done = || state.load(Ordering::Relaxed) == DONE;
                    team.join(|| look_for_work_until(Some(team), done));
                }
            });
        }
        let begin = Instant::now();
        while joined.load(Ordering::Relaxed) < others && begin.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        state.store(BEGUN, Ordering::SeqCst);
        let _guard = EndOnDrop(&state);
        if joined.load(Ordering::Relaxed) == 0 { work() } else { team.join(work) }
    })
}

/// Guard that ends a step even if it panics: the scope waits for its threads.
struct EndOnDrop<'a>(&'a AtomicU8);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(DONE, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    #[test]
    fn steps_may_be_nested_and_parallel() {
        let step =
            |i: u32| keep_awake(|| (0..1000_u32).into_par_iter().map(|x| x ^ i).sum::<u32>());
        let sums: Vec<u32> = (0..50_u32).into_par_iter().map(|i| keep_awake(|| step(i))).collect();
        let expected = |i: u32| (0..1000).map(|x| x ^ i).sum::<u32>();
        assert!((0..50).all(|i| sums[i as usize] == expected(i)));
    }

    #[test]
    #[should_panic(expected = "a step fails")]
    fn a_panic_ends_the_step() {
        keep_awake(|| panic!("a step fails"));
    }
}
