//! The GPU of this machine, or the reason why there is none.

use vattention_core::{Backend, Error, Options, PipelineConfig, Shape};
use vattention_cuda::{Cuda, Device, Driver};
use vattention_testkit::or_skip;

/// Environment variable that turns skips of tests without a GPU into failures.
pub(crate) const REQUIRE_GPU: &str = "VATTENTION_REQUIRE_GPU";

fn driver() -> Option<Driver> {
    or_skip(Driver::open(), REQUIRE_GPU)
}

/// Opening, querying and starting agree, and never panic.
#[test]
fn a_machine_without_a_gpu_reports_the_reason() {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 8, value_dim: 8 };
    let start = || {
        let pipeline = PipelineConfig::default().into();
        Cuda::default().start(&pipeline, 0, shape, &Options::default()).map(drop)
    };
    let Err(reason) = Driver::open() else {
        Cuda::default().available().unwrap();
        return start().unwrap();
    };
    assert!(matches!(reason, Error::Backend { .. }), "{reason}");
    for error in [Cuda::default().available().unwrap_err(), start().unwrap_err()] {
        assert_eq!(error.to_string(), reason.to_string());
    }
}

#[test]
fn memory_is_zero_initially_and_stores_writes() {
    let Some(driver) = driver() else { return };
    let memory = driver.allocate(1000).unwrap();
    assert!(driver.address(&memory).is_multiple_of(256));
    driver.write(&[1, 2, 3], &memory, 500).unwrap();
    let mut bytes = [9; 5];
    driver.read(&memory, 499, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 1, 2, 3, 0]);
}

#[test]
fn host_memory_stores_writes() {
    let Some(driver) = driver() else { return };
    let memory = driver.allocate_on_host(1000).unwrap();
    assert_ne!(driver.address(&memory), 0);
    driver.write(&[1, 2, 3], &memory, 500).unwrap();
    let mut bytes = [9; 5];
    driver.read(&memory, 499, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 1, 2, 3, 0]);
}

#[test]
fn a_failed_allocation_leaves_the_device_usable() {
    let Some(driver) = driver() else { return };
    let bytes = 1 << 50;
    let error = driver.allocate(bytes).unwrap_err();
    assert!(matches!(error, Error::Memory { bytes: b } if b == bytes), "{error}");
    driver.allocate(1).unwrap();
}
