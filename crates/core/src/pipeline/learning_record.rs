//! Record of the prompts and the feedback that a pipeline's selectors have received.

use std::sync::atomic::{AtomicU64, Ordering};

/// Prompts and feedback received so far. A selector that lacks them picks every token or uses old
/// statistics without an error, so steps are checked against this record.
#[derive(Debug, Default)]
pub(crate) struct LearningRecord {
    observed: bool,
    /// 1 + the number of the last checked step without feedback; 0 if there is none. Atomic,
    /// because steps have only a shared reference to the pipeline.
    awaiting: AtomicU64,
}

impl LearningRecord {
    /// Records that a prompt was received.
    pub(crate) fn record_prompt(&mut self) {
        self.observed = true;
    }

    /// Returns true if a prompt was received.
    pub(crate) fn has_prompt(&self) -> bool {
        self.observed
    }

    /// Records that the attention weights of the last step were received.
    pub(crate) fn record_feedback(&mut self) {
        *self.awaiting.get_mut() = 0;
    }

    /// Records that a step begins. Returns the number of an earlier step without feedback, if there
    /// is one.
    pub(crate) fn begin_step(&self, step: u32) -> Option<u32> {
        let begun = u64::from(step) + 1;
        let awaiting = self.awaiting.swap(begun, Ordering::Relaxed);
        if awaiting == 0 || awaiting == begun {
            return None;
        }
        self.awaiting.store(awaiting, Ordering::Relaxed);
        u32::try_from(awaiting - 1).ok()
    }
}

impl Clone for LearningRecord {
    fn clone(&self) -> Self {
        let awaiting = AtomicU64::new(self.awaiting.load(Ordering::Relaxed));
        Self { observed: self.observed, awaiting }
    }
}
