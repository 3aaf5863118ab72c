//! Results of laws.

/// Result of a law. `Err` describes the violation.
pub type Verdict = Result<(), String>;

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}
