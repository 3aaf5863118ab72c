//! Independent pieces of work, several at once.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::ThreadPoolBuilder;

use crate::{Error, Result};

/// What `one` makes of each of `count` pieces of work, in their order. `at_once` of them are done at the same
/// time, each on its share of rayon's threads, one after the other by the same `worker`'s state. After an
/// error nothing new is begun; the error returned is that of the first piece that has one.
///
/// # Errors
/// What `one` says, or [`Error::Threads`].
pub(crate) fn each<S, T: Send>(
    count: usize,
    at_once: NonZeroUsize,
    worker: impl Fn() -> S + Sync,
    one: impl Fn(&mut S, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let at_once = at_once.get().min(count);
    if at_once <= 1 {
        let mut state = worker();
        return (0..count).map(|piece| one(&mut state, piece)).collect();
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut made: Vec<Option<Result<T>>> = (0..count).map(|_| None).collect();
    let slots: Vec<_> = made.iter_mut().map(Mutex::new).collect();
    let work = || {
        let mut state = worker();
        while !failed.load(Ordering::Relaxed) {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = slots.get(piece) else { break };
            let result = one(&mut state, piece);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            if let Ok(mut slot) = slot.lock() {
                **slot = Some(result);
            }
        }
    };
    let threads = (rayon::current_num_threads() / at_once).max(1);
    let pool = || ThreadPoolBuilder::new().num_threads(threads).build().map_err(Error::Threads);
    let pools = (0..at_once).map(|_| pool()).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        for pool in &pools {
            scope.spawn(|| pool.install(work));
        }
    });
    drop(slots);
    // What is missing was not begun, because of an error.
    made.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: NonZeroUsize = NonZeroUsize::new(3).unwrap();

    #[test]
    fn results_are_in_order_however_many_are_made_at_once() {
        for at_once in [NonZeroUsize::MIN, THREE] {
            for count in [0, 1, 2, 20] {
                let made = each(count, at_once, || (), |(), piece| Ok(piece * piece)).unwrap();
                assert_eq!(made, (0..count).map(|piece| piece * piece).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn each_worker_keeps_its_state() {
        let counted = |seen: &mut usize, _| {
            *seen += 1;
            Ok(*seen)
        };
        let made = each(20, THREE, || 0, counted).unwrap();
        let workers = made.iter().filter(|&&first| first == 1).count();
        assert!((1..=3).contains(&workers), "{made:?}");
        assert!(made.iter().max() >= Some(&7), "{made:?}");
    }

    #[test]
    fn an_error_ends_it_and_is_told() {
        let begun = AtomicUsize::new(0);
        let one = |(): &mut (), piece| {
            begun.fetch_add(1, Ordering::Relaxed);
            if piece == 2 {
                let (path, reason) = ("a".into(), "b".into());
                Err(vattention_experiments::Error::Results { path, line: piece, reason }.into())
            } else {
                Ok(piece)
            }
        };
        for at_once in [NonZeroUsize::MIN, THREE] {
            let error = each(100_000, at_once, || (), one).unwrap_err();
            assert_eq!(error.to_string(), "a, line 2: b");
        }
        assert!(begun.into_inner() < 100_000);
    }
}
