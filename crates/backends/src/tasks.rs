//! Tasks that several threads process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Tasks of a parallel part of a step, which threads take in turn.
pub(crate) struct Tasks<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    count: usize,
    /// Number of tasks that were begun; larger than `count` if threads have looked for more.
    begun: AtomicUsize,
    finished: AtomicUsize,
    /// Payload of a task's panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl<'a> Tasks<'a> {
    /// Creates tasks that call `task` with each index below `count`.
    pub(crate) fn new(count: usize, task: &'a (dyn Fn(usize) + Sync)) -> Self {
        let (begun, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { task, count, begun, finished, panic: Mutex::new(None) }
    }

    /// Processes tasks until all of them have been begun. Returns false if they had been before.
    pub(crate) fn process(&self) -> bool {
        let mut any = false;
        while self.are_left() {
            let index = self.begun.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                break;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.task)(index))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
            self.finished.fetch_add(1, Ordering::Release);
            any = true;
        }
        any
    }

    /// Returns true if a task has not been begun.
    pub(crate) fn are_left(&self) -> bool {
        self.begun.load(Ordering::Relaxed) < self.count
    }

    pub(crate) fn are_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire) == self.count
    }

    /// Passes on the panic of a task, if there was one.
    ///
    /// # Panics
    /// If a task has panicked.
    pub(crate) fn end(self) {
        let panic = self.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}
