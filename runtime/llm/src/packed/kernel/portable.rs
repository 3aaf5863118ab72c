//! The kernel's operations in plain Rust.

use super::super::codebook::half_power;
use super::{BASE, CacheLine, Instructions, LANES, LaneExponents, LaneFactors, LaneNumbers};

/// Kernel in plain Rust.
pub(super) struct Portable;

fn map_pairs<A: Copy, B>(a: [A; LANES], b: [A; LANES], f: impl Fn(A, A) -> B) -> [B; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Instructions for Portable {
    type Bytes = CacheLine;
    type NibbleSums = [i32; LANES];
    type Integers = [i32; LANES];
    type Floats = [f32; LANES];
    const BYTE_ZERO: i32 = 128;

    unsafe fn load(from: *const CacheLine) -> CacheLine {
        unsafe { *from }
    }
    unsafe fn low_nibbles(bytes: CacheLine) -> CacheLine {
        CacheLine(bytes.0.map(|byte| byte & 15))
    }
    unsafe fn high_nibbles(bytes: CacheLine) -> CacheLine {
        CacheLine(bytes.0.map(|byte| byte >> 4))
    }
    unsafe fn look_up(codebook: &[u8; 16], nibbles: CacheLine) -> CacheLine {
        CacheLine(nibbles.0.map(|nibble| codebook[usize::from(nibble)]))
    }
    unsafe fn zero_nibble_sums() -> [i32; LANES] {
        [0; LANES]
    }
    unsafe fn dot_nibbles(sums: [i32; LANES], q: CacheLine, x: [i8; 4]) -> [i32; LANES] {
        unsafe { Self::dot_bytes(sums, q, x) }
    }
    unsafe fn finish(sums: [i32; LANES]) -> [i32; LANES] {
        sums
    }
    unsafe fn join_bits<const BITS: usize>(
        low: CacheLine,
        high: CacheLine,
        from: usize,
    ) -> CacheLine {
        let join = |i: usize| low.0[i] | (high.0[i] >> from & ((1 << BITS) - 1)) << 4;
        CacheLine(std::array::from_fn(join))
    }
    unsafe fn dot_six_bits(sums: [i32; LANES], q: CacheLine, x: [i8; 4]) -> [i32; LANES] {
        unsafe { Self::dot_bytes(sums, q, x) }
    }
    unsafe fn dot_bytes(sums: [i32; LANES], q: CacheLine, x: [i8; 4]) -> [i32; LANES] {
        let product = |lane: usize, i: usize| i32::from(q.0[4 * lane + i]) * i32::from(x[i]);
        std::array::from_fn(|lane| sums[lane] + (0..4).map(|i| product(lane, i)).sum::<i32>())
    }
    unsafe fn integers(x: i32) -> [i32; LANES] {
        [x; LANES]
    }
    unsafe fn sub(a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        map_pairs(a, b, |a, b| a - b)
    }
    unsafe fn next_digit(a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        map_pairs(a, b, |a, b| BASE * a + b)
    }
    unsafe fn to_floats(x: [i32; LANES]) -> [f32; LANES] {
        x.map(|x| x as f32)
    }
    unsafe fn floats(x: f32) -> [f32; LANES] {
        [x; LANES]
    }
    unsafe fn load_numbers(from: *const LaneNumbers) -> [f32; LANES] {
        unsafe { (*from).map(f32::from) }
    }
    unsafe fn load_exponents(from: *const LaneExponents) -> [f32; LANES] {
        unsafe { (*from).map(half_power) }
    }
    unsafe fn load_factors(from: *const LaneFactors) -> [f32; LANES] {
        unsafe { (*from).map(f32::from) }
    }
    unsafe fn mul(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        map_pairs(a, b, |a, b| a * b)
    }
    unsafe fn add(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        map_pairs(a, b, |a, b| a + b)
    }
    unsafe fn fma(a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    unsafe fn store(to: &mut [f32; LANES], x: [f32; LANES]) {
        *to = x;
    }
    unsafe fn prefetch(_: *const CacheLine) {}
}
