//! The kernels, emulated on the host, against definitions in f64 and against core's own types.

mod attend;
mod bounded;
mod budget_check;
mod choose;
mod encode;
mod gpu;
mod moments;
mod pages;
mod prelude;
mod sample;
mod sanitizer;
mod score;
mod select;
mod steps;
mod take;
mod world;

use vattention_cuda::Device;

/// Checks every kernel at every shape, once, on any device.
fn check_kernels<D: Device>(device: &D) {
    prelude::check_widening(device);
    for (seed, kind) in world::KINDS.into_iter().enumerate() {
        attend::check_problems(device, kind, seed % 2 == 0, seed as u64);
        score::check_logits(device, kind, 270, seed as u64);
        encode::check_codes(device, kind, encode::WIDTHS[seed % 5], (seed % 3, 90), seed as u64);
        pages::check_pages(device, kind, pages::PAGES[seed % 5], 400, seed as u64);
    }
    for (seed, capacity) in steps::CAPACITIES.into_iter().enumerate().skip(1).step_by(2) {
        let bits = 1 + 40 * (seed % 3);
        let (fresh, seed) = (seed % 4 == 1, seed as u64);
        take::check_ranges(device, (2, 3), capacity, fresh, seed);
        score::check_codes(device, bits, (2, 2), capacity, seed);
        select::check_select(device, 2, capacity, seed);
        take::check_lists(device, (2, 2), capacity, seed);
        sample::check_sample(device, (2, 2), capacity, seed);
    }
    choose::check_choice(device);
    for (seed, kind) in world::KINDS.into_iter().enumerate() {
        moments::check_sample_moments(device, kind, moments::DRAWN[seed], seed as u64);
    }
    budget_check::check_budgets(device);
    bounded::check_bounded(device);
}
