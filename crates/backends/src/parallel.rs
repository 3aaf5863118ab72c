//! Parallel work on rayon's threads, which do not sleep until it is done.
//!
//! A thread of `rayon::join` sleeps while it waits for the last piece, if the pieces do not divide
//! evenly. In a virtual machine it takes tens of microseconds to wake, as long as a KV head takes.
//! So the threads here take the next piece from a queue, and a thread that finds it empty looks for
//! other jobs until the last piece is done.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::awake::look_for_jobs_until;

/// Applies `f` to each piece of work on the threads of the current pool, and returns the results in
/// the order of the pieces.
pub(crate) fn map_parallel<T: Send, R: Send>(work: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = work.len();
    let results: Mutex<Vec<Option<R>>> = Mutex::new((0..count).map(|_| None).collect());
    let (queue, done) = (Mutex::new(work.into_iter().enumerate()), AtomicUsize::new(0));
    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let process = || {
        while let Some((place, piece)) = take() {
            let _counted = CountOnDrop(&done);
            let result = f(piece);
            results.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(result);
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
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().map(|result| result.expect("every piece is processed")).collect()
}

/// Counts a piece when dropped, even if it panics: the scope then passes the panic on.
struct CountOnDrop<'a>(&'a AtomicUsize);

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_pieces_at_any_depth() {
        let row = |i: usize| map_parallel((0..7).collect(), |j: usize| 10 * i + j);
        let found = map_parallel((0..50).collect(), row);
        let expected: Vec<Vec<usize>> =
            (0..50).map(|i| (0..7).map(|j| 10 * i + j).collect()).collect();
        assert_eq!(found, expected);
        assert!(map_parallel(Vec::<usize>::new(), |i| i).is_empty());
    }

    #[test]
    #[should_panic(expected = "a piece fails")]
    fn a_panic_of_a_piece_reaches_the_caller() {
        map_parallel((0..20).collect(), |i: usize| assert!(i != 13, "a piece fails"));
    }
}
