//! The kernels with every access checked, in another process, because the sanitizer's runtime must
//! be loaded before anything else.

use vattention_cuda_emulator::{Emulator, REQUIRE_EMULATOR, ThreadSchedule, run_sanitized};
use vattention_testkit::or_skip;

use super::check_kernels;

#[test]
#[ignore = "it takes minutes; `just sanitize` runs it"]
fn every_access_is_within_bounds() {
    let Some(output) = or_skip(run_sanitized("kernels::sanitizer::all_kernels"), REQUIRE_EMULATOR)
    else {
        return;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{stderr}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
#[ignore = "run under the address sanitizer, by every_access_is_within_bounds"]
fn all_kernels() {
    let device = Emulator::sanitized().unwrap();
    for schedule in [ThreadSchedule::several()[1], ThreadSchedule::several()[3]] {
        check_kernels(&device.clone().with_order(schedule));
    }
}
