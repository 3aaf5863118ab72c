//! Parallel execution of independent pieces of work.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::ThreadPoolBuilder;

use crate::{Error, Result};

/// Runs `count` pieces of work by `run_piece`, and returns their results in order. `workers`
/// workers run in parallel, each on its share of rayon's threads. A worker runs one piece after the
/// other, with the state that `create_state` returns. After an error no further piece begins; the
/// returned error is that of the first failed piece.
///
/// # Errors
/// Errors of `run_piece`, and [`Error::Threads`].
pub(crate) fn run_in_parallel<S, T: Send>(
    count: usize,
    workers: NonZeroUsize,
    create_state: impl Fn() -> S + Sync,
    run_piece: impl Fn(&mut S, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let workers = workers.get().min(count);
    if workers <= 1 {
        let mut state = create_state();
        return (0..count).map(|piece| run_piece(&mut state, piece)).collect();
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut results: Vec<Option<Result<T>>> = (0..count).map(|_| None).collect();
    let slots: Vec<_> = results.iter_mut().map(Mutex::new).collect();
    let work = || {
        let mut state = create_state();
        while !failed.load(Ordering::Relaxed) {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = slots.get(piece) else { break };
            let result = run_piece(&mut state, piece);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            if let Ok(mut slot) = slot.lock() {
                **slot = Some(result);
            }
        }
    };
    let threads = (rayon::current_num_threads() / workers).max(1);
    let pool = || ThreadPoolBuilder::new().num_threads(threads).build().map_err(Error::Threads);
    let pools = (0..workers).map(|_| pool()).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        for pool in &pools {
            scope.spawn(|| pool.install(work));
        }
    });
    drop(slots);
    // Pieces without a result did not begin, because of an error.
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: NonZeroUsize = NonZeroUsize::new(3).unwrap();

    #[test]
    fn results_are_in_order_for_any_number_of_workers() {
        for workers in [NonZeroUsize::MIN, THREE] {
            for count in [0, 1, 2, 20] {
                let results =
                    run_in_parallel(count, workers, || (), |(), piece| Ok(piece * piece)).unwrap();
                assert_eq!(results, (0..count).map(|piece| piece * piece).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn each_worker_reuses_its_state() {
        let counted = |pieces: &mut usize, _| {
            *pieces += 1;
            Ok(*pieces)
        };
        let results = run_in_parallel(20, THREE, || 0, counted).unwrap();
        let workers = results.iter().filter(|&&first| first == 1).count();
        assert!((1..=3).contains(&workers), "{results:?}");
        assert!(results.iter().max() >= Some(&7), "{results:?}");
    }

    #[test]
    fn an_error_stops_the_work_and_is_returned() {
        let begun = AtomicUsize::new(0);
        let run_piece = |(): &mut (), piece| {
            begun.fetch_add(1, Ordering::Relaxed);
            if piece == 2 {
                let (path, reason) = ("a".into(), "b".into());
                Err(vattention_experiments::Error::Results { path, line: piece, reason }.into())
            } else {
                Ok(piece)
            }
        };
        for workers in [NonZeroUsize::MIN, THREE] {
            let error = run_in_parallel(100_000, workers, || (), run_piece).unwrap_err();
            assert_eq!(error.to_string(), "a, line 2: b");
        }
        assert!(begun.into_inner() < 100_000);
    }
}
