//! The kernels once more, with every access checked: in a process of its own, because the
//! sanitizer's runtime must be there before anything else.

use std::path::PathBuf;
use std::process::{Command, Output};

use vattention_cuda_emulator::{Emulator, Schedule};

use super::attend::check_problems;
use super::world::KINDS;

/// The runtime of the address sanitizer, or `None`, said on stderr.
fn runtime() -> Option<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let output = Command::new(compiler).arg("-print-file-name=libasan.so").output();
    let path = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().into());
    // A compiler that has none answers with the bare name.
    let path = path.ok().filter(|path: &PathBuf| path.is_absolute());
    if path.is_none() {
        eprintln!("skipped: the C++ compiler has no address sanitizer");
    }
    path
}

/// Runs an ignored test of this program under the sanitizer.
fn run_sanitized(test: &str) -> Option<Output> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", test]);
    // What the test harness leaves allocated is none of the kernels'.
    command.env("LD_PRELOAD", runtime()?).env("ASAN_OPTIONS", "detect_leaks=0");
    Some(command.output().unwrap())
}

#[test]
fn every_access_is_within_bounds() {
    let Some(output) = run_sanitized("sanitizer::all_kernels") else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
#[ignore = "run under the address sanitizer, by every_access_is_within_bounds"]
fn all_kernels() {
    let device = Emulator::sanitized().unwrap();
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let schedule = Schedule::several()[seed % 4];
        let device = device.clone().with_order(schedule);
        check_problems(&device, kind, seed % 2 == 0, seed as u64);
    }
}
