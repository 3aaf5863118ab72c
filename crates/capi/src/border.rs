//! The border between C and Rust: panics become statuses, and messages are stored.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use vattention::panic_message;

use crate::status::{CallError, va_status};

thread_local! {
    /// Message of this thread's last error.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call, and stores the message if it fails or panics.
pub(crate) fn run_call(work: impl FnOnce() -> Result<(), CallError>) -> va_status {
    let error = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return va_status::VA_OK,
        Ok(Err(error)) => error,
        Err(panic) => {
            let message = panic_message(&*panic);
            let message = format!("a bug in vattention, please report it: {message}");
            CallError::new(va_status::VA_ERROR_BUG, message)
        }
    };
    store_message(error.message);
    error.status
}

fn store_message(message: String) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no message any more.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Returns the message of the last error of the calling thread, in UTF-8; empty if there was none.
///
/// The text is valid until the thread's next call that fails, or the end of the thread.
///
/// Thread safety: any thread; each has its own message.
#[unsafe(no_mangle)]
pub extern "C" fn va_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as "0.1.0". The text is valid forever.
///
/// Thread safety: any thread.
#[unsafe(no_mangle)]
pub extern "C" fn va_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: the text is valid until this thread's next error.
        unsafe { CStr::from_ptr(va_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn errors_and_panics_become_statuses_with_messages() {
        assert_eq!((run_call(|| Ok(())), last()), (va_status::VA_OK, String::new()));
        let refused = run_call(|| Err(CallError::argument("tokens: expected\0 at least 1")));
        assert_eq!(refused, va_status::VA_ERROR_ARGUMENT);
        assert_eq!(last(), "tokens: expected  at least 1");
        assert_eq!(run_call(|| panic!("index {}", 7)), va_status::VA_ERROR_BUG);
        assert_eq!(last(), "a bug in vattention, please report it: index 7");
        assert_eq!(std::thread::spawn(last).join().unwrap(), "", "another thread");
    }
}
