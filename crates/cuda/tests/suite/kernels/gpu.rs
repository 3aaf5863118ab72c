//! Every kernel on the GPU of this machine, if there is one.

use vattention_cuda::Driver;
use vattention_testkit::or_skip;

use crate::driver::REQUIRE_GPU;

#[test]
fn every_kernel_runs_on_the_gpu() {
    if let Some(driver) = or_skip(Driver::open(), REQUIRE_GPU) {
        super::check_kernels(&driver);
    }
}
