//! Long calls: they run on a thread of their own, while Python's looks for Ctrl-C and shows progress.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::{Interrupted, check_process, exception_of, guarded};

/// What is called with the steps done and of all, from any thread.
pub(crate) type ReportProgress<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// How long Ctrl-C may wait.
const PATIENCE: Duration = Duration::from_millis(50);

/// Steps done and of all, reported by whoever works, from any thread.
#[derive(Default)]
struct Steps {
    done: AtomicUsize,
    total: AtomicUsize,
    stop: AtomicBool,
}

impl Steps {
    fn report(&self, done: usize, total: usize) {
        if self.stop.load(Ordering::Relaxed) {
            // Not a panic that anybody is told of.
            resume_unwind(Box::new(Interrupted));
        }
        self.total.store(total, Ordering::Relaxed);
        self.done.fetch_max(done, Ordering::Relaxed);
    }

    fn show(&self, progress: Option<&Py<PyAny>>) -> PyResult<()> {
        let Some(progress) = progress else { return Ok(()) };
        let steps = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        Python::attach(|py| progress.call1(py, steps).map(drop))
    }
}

/// Runs `run`, which reports steps done and of all to the function that it is given, and ends at such a report when Ctrl-C
/// came or `progress(done, total)` raised an exception.
pub(crate) fn run_long<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    run: impl FnOnce(&ReportProgress<'_>) -> T + Send,
) -> PyResult<T> {
    check_process()?;
    py.detach(|| {
        let steps = Steps::default();
        let (finished, wait) = channel();
        thread::scope(|scope| {
            let steps = &steps;
            let worker = scope.spawn(move || {
                let made = guarded(|| run(&|done, total| steps.report(done, total)));
                drop(finished);
                made
            });
            let mut raised = None;
            // Nothing is sent: the channel closes when the work is done.
            while wait.recv_timeout(PATIENCE) == Err::<(), _>(RecvTimeoutError::Timeout) {
                #[allow(clippy::redundant_closure_for_method_calls)]
                // The method is not general enough.
                let seen = Python::attach(|py| py.check_signals());
                if let Err(error) = seen.and_then(|()| steps.show(progress.as_ref())) {
                    steps.stop.store(true, Ordering::Relaxed);
                    raised.get_or_insert(error);
                }
            }
            let made = worker.join().unwrap_or_else(|panic| Err(exception_of(panic)));
            match raised {
                Some(error) => Err(error),
                None => made.and_then(|made| steps.show(progress.as_ref()).map(|()| made)),
            }
        })
    })
}
