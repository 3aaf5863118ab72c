//! The `vattention` command, which the package brings without a second binary.

use std::ffi::OsString;

use pyo3::prelude::*;

/// What a Rust program that panics ends with.
const PANICKED: u8 = 101;

/// Runs the command as a program would, and returns its exit code. Ctrl-C may end the process, which should do nothing else.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    // A panic has been reported when it arrives here.
    py.detach(|| std::panic::catch_unwind(|| vattention_cli::main_from(args)).unwrap_or(PANICKED))
}
