//! Failures on this side of the C interface.

use std::any::Any;
use std::cell::RefCell;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A result whose error is only printed.
pub(crate) type PeerResult<T> = Result<T, Box<dyn Error>>;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a call, and stores the reason if it fails or panics.
pub(crate) fn guarded<T>(run: impl FnOnce() -> PeerResult<T>) -> Option<T> {
    let reason = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error.to_string(),
        Err(payload) => format!("panic: {}", message(payload.as_ref())),
    };
    LAST.with(|last| *last.borrow_mut() = reason);
    None
}

/// Reason why this thread's last call failed; empty if none has failed.
pub(crate) fn last() -> String {
    LAST.with(|last| last.borrow().clone())
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_failure_is_stored_for_errors_and_panics() {
        assert_eq!(guarded(|| Ok(3)), Some(3));
        assert_eq!(guarded(|| PeerResult::<()>::Err("no such file".into())), None);
        assert_eq!(last(), "no such file");
        assert_eq!(guarded(|| -> PeerResult<()> { panic!("index {}", 7) }), None);
        assert_eq!(last(), "panic: index 7");
    }
}
