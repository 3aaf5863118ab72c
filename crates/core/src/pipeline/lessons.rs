//! Record of the prompts and the feedback that a pipeline's selectors have been given.

use std::sync::atomic::{AtomicU64, Ordering};

/// Prompts and feedback so far. Selectors that have not received them pick everything without an
/// error, so steps are checked against this record.
#[derive(Debug, Default)]
pub(crate) struct Lessons {
    observed: bool,
    /// 1 + the number of the last checked step without feedback; 0 if there is none. Atomic,
    /// because steps have only a shared reference to the pipeline.
    owed: AtomicU64,
}

impl Lessons {
    /// Records that a prompt was shown.
    pub(crate) fn observe(&mut self) {
        self.observed = true;
    }

    /// Returns whether a prompt was shown.
    pub(crate) fn observed(&self) -> bool {
        self.observed
    }

    /// Records that the last step's attention weights were given.
    pub(crate) fn feed_back(&mut self) {
        *self.owed.get_mut() = 0;
    }

    /// Records that a step begins, and returns the number of an earlier step without feedback.
    pub(crate) fn begin(&self, step: u32) -> Option<u32> {
        let begun = u64::from(step) + 1;
        let owed = self.owed.swap(begun, Ordering::Relaxed);
        if owed == 0 || owed == begun {
            return None;
        }
        self.owed.store(owed, Ordering::Relaxed);
        u32::try_from(owed - 1).ok()
    }
}

impl Clone for Lessons {
    fn clone(&self) -> Self {
        let owed = AtomicU64::new(self.owed.load(Ordering::Relaxed));
        Self { observed: self.observed, owed }
    }
}
