//! The `vattention` command, which the package provides without a second binary.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Exit code of a Rust program that panicked.
const PANICKED: u8 = 101;

/// Runs the command like a program, and returns its exit code. Ctrl-C may end the process, so the
/// process should do nothing else.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    // The panic hook has already printed the panic.
    py.detach(|| std::panic::catch_unwind(|| vattention_cli::main_from(args)).unwrap_or(PANICKED))
}
