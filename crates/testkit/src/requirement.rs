//! Requirements of tests that not every machine has.

use std::fmt::Display;
use std::io::Write;

/// Returns a test's requirement, or prints `skipped: ` and the reason to stderr and returns `None`.
///
/// # Panics
/// If the requirement is missing and the environment has the variable `required`.
pub fn or_skip<T>(needed: Result<T, impl Display>, required: &str) -> Option<T> {
    match needed {
        Ok(needed) => Some(needed),
        Err(error) if std::env::var_os(required).is_some() => panic!("{required} is set: {error}"),
        Err(error) => {
            // The test harness would hide `eprintln!` of a test that passes.
            let _ = writeln!(std::io::stderr(), "\nskipped: {error}");
            None
        }
    }
}
