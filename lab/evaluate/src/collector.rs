//! Where answers that are made at the same time come together.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vattention_experiments::Part;

use crate::{AnswerCache, CaseAnswer, Record, Result};

/// Keeps answers, counts them, and says how many there are.
pub(crate) struct Collector<'a> {
    state: Mutex<CollectorState<'a>>,
    /// Answers that there will be.
    total: usize,
    progress: &'a (dyn Fn(usize, usize) + Sync),
}

struct CollectorState<'a> {
    kept: &'a mut AnswerCache,
    done: usize,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(
        kept: &'a mut AnswerCache,
        total: usize,
        progress: &'a (dyn Fn(usize, usize) + Sync),
    ) -> Self {
        Self { state: Mutex::new(CollectorState { kept, done: 0 }), total, progress }
    }

    /// The answer that depends on the same, if it was kept.
    pub(crate) fn find(&self, digest: &str) -> Option<CaseAnswer> {
        self.state().kept.find(digest)
    }

    /// Whether nothing may be asked.
    pub(crate) fn only_kept(&self) -> bool {
        matches!(self.state().kept.part(), Part::Nothing { .. })
    }

    /// Keeps a new answer, without the scores that are computed anew from it.
    pub(crate) fn keep(&self, record: &Record) -> Result<()> {
        self.state().kept.push(Record { others: Vec::new(), ..record.clone() })
    }

    /// Counts an answer, new or not. Counts are told one after the other.
    pub(crate) fn count(&self) {
        let mut state = self.state();
        state.done += 1;
        (self.progress)(state.done, self.total);
    }

    fn state(&self) -> MutexGuard<'_, CollectorState<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
