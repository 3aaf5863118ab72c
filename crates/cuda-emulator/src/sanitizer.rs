//! Tests under the address sanitizer.

use std::path::PathBuf;
use std::process::{Command, Output};

use vattention_core::Result;

use crate::compiler::compiler_command;
use crate::fail;

/// Runs an ignored test of this test program in another process, which loads the address
/// sanitizer's runtime before anything else, as [`Emulator::sanitized`] requires.
///
/// # Errors
/// If the C++ compiler has no such runtime, or the process cannot be started.
///
/// [`Emulator::sanitized`]: crate::Emulator::sanitized
pub fn run_sanitized(test: &str) -> Result<Output> {
    let program = std::env::current_exe().map_err(|error| fail(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--nocapture", test]);
    // The test harness leaks memory, which is no fault of the kernels.
    command.env("LD_PRELOAD", runtime()?).env("ASAN_OPTIONS", "detect_leaks=0");
    command.output().map_err(|error| fail(error.to_string()))
}

/// Path of the address sanitizer's runtime.
fn runtime() -> Result<PathBuf> {
    let output = Command::new(compiler_command()).arg("-print-file-name=libasan.so").output();
    let output = output.map_err(|error| fail(error.to_string()))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // A compiler without a runtime prints the bare name.
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(fail("the C++ compiler has no address sanitizer".to_owned()))
    }
}
