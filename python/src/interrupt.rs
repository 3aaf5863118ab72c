//! Long calls, which run on a separate thread while Python's thread handles Ctrl-C and progress.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::{Interrupted, check_process, guarded, panic_to_exception};

/// Callback for the number of finished steps and of all steps, called from any thread.
pub(crate) type ReportProgress<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Interval between checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Numbers of finished steps and of all steps, which any thread may report.
#[derive(Default)]
struct Steps {
    done: AtomicUsize,
    total: AtomicUsize,
    stop: AtomicBool,
}

impl Steps {
    fn report(&self, done: usize, total: usize) {
        if self.stop.load(Ordering::Relaxed) {
            // `resume_unwind` does not call the panic hook, which would print a message.
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

/// Runs `run` on a separate thread. `run` calls its argument with the number of finished steps and
/// the number of all steps. After Ctrl-C, or an exception from `progress(done, total)`, the next
/// such call ends `run`.
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
                let result = guarded(|| run(&|done, total| steps.report(done, total)));
                drop(finished);
                result
            });
            let mut raised = None;
            // Nothing is sent: the channel closes when the work is done.
            while wait.recv_timeout(POLL_INTERVAL) == Err::<(), _>(RecvTimeoutError::Timeout) {
                #[allow(clippy::redundant_closure_for_method_calls)]
                // The method's lifetime is not general enough.
                let signals = Python::attach(|py| py.check_signals());
                if let Err(error) = signals.and_then(|()| steps.show(progress.as_ref())) {
                    steps.stop.store(true, Ordering::Relaxed);
                    raised.get_or_insert(error);
                }
            }
            let result = worker.join().unwrap_or_else(|panic| Err(panic_to_exception(panic)));
            match raised {
                Some(error) => Err(error),
                None => result.and_then(|value| steps.show(progress.as_ref()).map(|()| value)),
            }
        })
    })
}
