//! The kernels once more, with every access checked: in a process of its own, because the
//! sanitizer's runtime must be there before anything else.

use vattention_cuda_emulator::{Emulator, Schedule, run_sanitized};

use super::attend::check_problems;
use super::sample::check_sample;
use super::select::{VISIBLE, check_from_codes_to_attention, check_shapes};
use super::world::KINDS;

#[test]
fn every_access_is_within_bounds() {
    let output = match run_sanitized("sanitizer::all_kernels") {
        Ok(output) => output,
        Err(error) => return eprintln!("skipped: {error}"),
    };
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
    check_shapes(&device);
    check_from_codes_to_attention(&device);
    for (seed, visible) in VISIBLE.into_iter().enumerate() {
        check_sample(&device, 2, 2, visible, seed as u64);
    }
}
