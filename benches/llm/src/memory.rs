//! The rate at which memory is read.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// Number of elements to read: 1 GiB, more than caches hold.
const COUNT: usize = 1 << 28;

/// Bytes per second that `threads` threads read in parallel, the best of several passes.
pub(crate) fn bandwidth(threads: usize) -> f64 {
    let numbers = vec![1.0_f32; COUNT];
    let pass = |_| {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in numbers.chunks(COUNT.div_ceil(threads)) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        size_of_val(&numbers[..]) as f64 / start.elapsed().as_secs_f64()
    };
    (0..7).map(pass).fold(0.0, f64::max)
}

/// Sums numbers in lanes, so that reading dominates the time.
fn sum(numbers: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 64];
    for chunk in numbers.chunks_exact(lanes.len()) {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane += number;
        }
    }
    lanes.iter().sum()
}
