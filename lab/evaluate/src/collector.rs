//! Collection of answers from parallel cases.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vattention_experiments::Part;

use crate::{AnswerCache, CaseAnswer, Record, Result};

/// Collects answers from several threads: stores and counts them, and reports progress.
pub(crate) struct Collector<'a> {
    state: Mutex<CollectorState<'a>>,
    /// Number of all answers.
    total: usize,
    progress: &'a (dyn Fn(usize, usize) + Sync),
}

struct CollectorState<'a> {
    cache: &'a mut AnswerCache,
    done: usize,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(
        cache: &'a mut AnswerCache,
        total: usize,
        progress: &'a (dyn Fn(usize, usize) + Sync),
    ) -> Self {
        Self { state: Mutex::new(CollectorState { cache, done: 0 }), total, progress }
    }

    /// Returns the stored answer with a digest.
    pub(crate) fn find(&self, digest: &str) -> Option<CaseAnswer> {
        self.state().cache.find(digest)
    }

    /// Returns true if only stored answers may be used.
    pub(crate) fn only_stored(&self) -> bool {
        matches!(self.state().cache.part(), Part::Nothing { .. })
    }

    /// Stores a new answer, without the scores that can be computed from it.
    pub(crate) fn store(&self, record: &Record) -> Result<()> {
        self.state().cache.push(Record { others: Vec::new(), groups: Vec::new(), ..record.clone() })
    }

    /// Counts an answer, new or stored, and reports progress; reports do not overlap.
    pub(crate) fn count(&self) {
        let mut state = self.state();
        state.done += 1;
        (self.progress)(state.done, self.total);
    }

    fn state(&self) -> MutexGuard<'_, CollectorState<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
