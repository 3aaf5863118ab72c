//! The kernels, emulated on the host, against definitions in f64 and against core's own types.

#![allow(clippy::unwrap_used)]

mod attend;
mod gpu;
mod judge;
mod look;
mod prelude;
mod sample;
mod sanitizer;
mod select;
mod world;

use vattention_cuda::Device;

/// Every kernel at every shape, once, on any device.
fn check_kernels<D: Device>(device: &D) {
    prelude::check_widening(device);
    for (seed, kind) in world::KINDS.into_iter().enumerate() {
        attend::check_problems(device, kind, seed % 2 == 0, seed as u64);
    }
    for (seed, visible) in select::VISIBLE.into_iter().enumerate() {
        select::check_shape(device, visible, seed as u64);
        sample::check_sample(device, 2, 2, visible, seed as u64);
    }
    select::check_from_codes_to_attention(device);
    for (seed, kind) in world::KINDS.into_iter().enumerate() {
        look::check_look(device, kind, look::DRAWN[seed], seed as u64);
    }
    judge::check_judge(device);
}
