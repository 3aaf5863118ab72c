//! Handle of the engine: its queue, metrics and shutdown.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{EngineMetrics, Job, SubmitError};

/// Handle of an engine, which handlers of requests share.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    /// Becomes true when the engine's thread has ended.
    stopped: watch::Receiver<bool>,
    limits: SubmitLimits,
}

/// Limits that decide if a job is accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubmitLimits {
    pub(super) max_queue: usize,
    /// Memory for the keys and values of all running sequences, in bytes.
    pub(super) sequence_bytes: u64,
    /// Size of the stored keys and values of one token, in bytes.
    pub(super) token_bytes: u64,
    /// Additional memory per prompt token, in bytes: prefill holds its keys and values in f32.
    pub(super) reading_bytes: u64,
}

/// State that the engine's thread and the handles share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Job>,
    metrics: EngineMetrics,
    shutdown: Option<Shutdown>,
}

/// Request to end the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shutdown {
    /// Time at which running jobs are cancelled; `None` lets all of them finish.
    pub(super) deadline: Option<Instant>,
}

impl State {
    fn is_idle(&mut self) -> bool {
        self.queue.is_empty() && self.shutdown.is_none()
    }
}

impl SubmitLimits {
    /// Returns the number of bytes that a job reserves for its prompt and `max_tokens`.
    pub(super) fn stored_bytes(&self, job: &Job) -> u64 {
        let tokens = job.prompt.len().saturating_add(job.params.max_tokens);
        self.token_bytes.saturating_mul(tokens as u64)
    }

    /// Returns the number of bytes that a job reserves while its prompt is read.
    pub(super) fn reading_bytes(&self, job: &Job) -> u64 {
        let reading = self.reading_bytes.saturating_mul(job.prompt.len() as u64);
        self.stored_bytes(job).saturating_add(reading)
    }
}

impl EngineHandle {
    pub(super) fn new(
        shared: Arc<Shared>,
        stopped: watch::Receiver<bool>,
        limits: SubmitLimits,
    ) -> Self {
        Self { shared, stopped, limits }
    }

    /// Adds a job to the queue.
    ///
    /// # Errors
    /// [`SubmitError`] with the reason why the job was not accepted.
    pub fn submit(&self, job: Job) -> Result<(), SubmitError> {
        let (needed, limit) = (self.limits.reading_bytes(&job), self.limits.sequence_bytes);
        if needed > limit {
            return Err(SubmitError::TooLarge { needed, limit });
        }
        let mut state = self.shared.lock();
        if state.shutdown.is_some() || *self.stopped.borrow() {
            return Err(SubmitError::ShuttingDown);
        }
        if state.queue.len() >= self.limits.max_queue {
            return Err(SubmitError::QueueFull);
        }
        state.queue.push_back(job);
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Returns the current counters and gauges.
    pub fn metrics(&self) -> EngineMetrics {
        let state = self.shared.lock();
        EngineMetrics { queued: state.queue.len(), ..state.metrics.clone() }
    }

    /// Returns true if the engine shuts down or has ended.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.lock().shutdown.is_some() || *self.stopped.borrow()
    }

    /// Refuses new jobs, fails the queued ones, waits up to `patience` for the running ones,
    /// cancels the rest, and ends the engine's thread.
    pub async fn shut_down(&self, patience: Duration) {
        let deadline = Instant::now().checked_add(patience);
        self.shared.lock().shutdown = Some(Shutdown { deadline });
        self.shared.wake.notify_all();
        let mut stopped = self.stopped.clone();
        // An error means that the sender was dropped, so the thread has ended as well.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the queue has a job or a shutdown is requested, and returns true; returns false
    /// if neither happens within `limit`.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let waited = self.wake.wait_timeout_while(self.lock(), limit, State::is_idle);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Removes the first job of the queue if `fits` returns true for it.
    pub(super) fn take_job(&self, fits: impl FnOnce(&Job) -> bool) -> Option<Job> {
        let mut state = self.lock();
        if state.queue.front().is_some_and(fits) { state.queue.pop_front() } else { None }
    }

    /// Removes from the queue all jobs whose client has disconnected, and returns their number.
    pub(super) fn remove_cancelled(&self) -> usize {
        let mut state = self.lock();
        let before = state.queue.len();
        state.queue.retain(|job| !job.events.is_closed());
        before - state.queue.len()
    }

    /// Removes all jobs from the queue.
    pub(super) fn take_all(&self) -> VecDeque<Job> {
        std::mem::take(&mut self.lock().queue)
    }

    pub(super) fn shutdown(&self) -> Option<Shutdown> {
        self.lock().shutdown
    }

    pub(super) fn update_metrics(&self, update: impl FnOnce(&mut EngineMetrics)) {
        update(&mut self.lock().metrics);
    }
}
