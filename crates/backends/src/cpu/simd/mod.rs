//! Vectors of sixteen f32 elements, on several instruction sets.
//!
//! Kernels are written once, over [`Simd`], and compiled for each [`Level`]; [`Scalar`] is plain
//! Rust, which the others are tested against. Functions are `unsafe` for two reasons: they read
//! through pointers that the caller guarantees to be valid, and they may use instructions whose
//! presence only the entry point of a kernel checks.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
mod scalar;

pub(crate) use element::{SimdElement, from_lanes, to_lanes};
pub(crate) use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512};

use std::cell::RefCell;
use std::thread::LocalKey;

use half::{bf16, f16};
use vattention_core::step::{BufferPool, Pooled};

/// Number of elements of a vector.
pub(crate) const LANES: usize = 16;

/// Number of elements that are read together: two vectors.
pub(crate) const CHUNK: usize = 2 * LANES;

/// Sixteen elements that fill a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct SimdLine(pub(crate) [f32; LANES]);

thread_local! {
    static LINES: BufferPool<SimdLine> = const { RefCell::new(Vec::new()) };
}

impl Pooled for SimdLine {
    fn pool() -> &'static LocalKey<BufferPool<Self>> {
        &LINES
    }
}

/// Vectors of [`LANES`] f32 elements.
///
/// # Safety
/// The machine must have the instructions of the implementation, and pointers must be valid for
/// the elements that are read or written. All functions are inlined into a function that is
/// compiled for these instructions.
pub(crate) trait Simd: Copy {
    /// Type of a vector.
    type F: Copy;
    /// Type of [`LANES`] 32-bit integers, or pairs of 16-bit integers.
    type I: Copy;
    /// Type of f32 sums in one register.
    type D: Copy;
    /// Type of 32-bit integers in one register.
    type R: Copy;

    /// True if registers suffice for sixteen sums of type `D`; otherwise they suffice for eight.
    const WIDE: bool;
    /// True if the prefetch functions do anything.
    const PREFETCHES: bool;

    /// Runs a kernel as a function of its own, which is not inlined: the registers of a loop in it
    /// do not depend on the code around it.
    unsafe fn call<K: SimdKernel>(kernel: K) -> K::Output;
    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, x: Self::F);
    /// Stores the elements times `factor` in f64.
    unsafe fn store_wide(to: *mut f64, x: Self::F, factor: f64);
    /// Adds the elements to numbers in f64.
    unsafe fn add_wide(to: *mut f64, x: Self::F);
    /// Moves each element of a group of four to the place before it, and the first to the last.
    unsafe fn rotate_by_one(x: Self::F) -> Self::F;
    /// Exchanges the first and last two elements of each group of four.
    unsafe fn rotate_by_two(x: Self::F) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `2^x` for `x ≤ 127`, with a relative error below 3e-7; 0 if the result underflows.
    unsafe fn exp2(x: Self::F) -> Self::F;
    /// Zeros in one register.
    unsafe fn no_sums() -> Self::D;
    /// Adds the products `a · b` to `sum`, in one register.
    unsafe fn fold(a: Self::F, b: Self::F, sum: Self::D) -> Self::D;
    /// Sum of the elements of each of sixteen registers.
    unsafe fn sums(x: &[Self::D; LANES]) -> Self::F;
    /// Returns true if any element of `a` is greater than its counterpart in `b`.
    unsafe fn any_above(a: Self::F, b: Self::F) -> bool;
    /// Loads [`CHUNK`] elements: the first half and the second.
    unsafe fn widen_f32(from: *const f32) -> (Self::F, Self::F);
    /// Loads [`CHUNK`] half-precision numbers: the first half and the second.
    unsafe fn widen_f16(from: *const f16) -> (Self::F, Self::F);
    /// Loads [`CHUNK`] brain floats: the even positions and the odd ones.
    unsafe fn widen_bf16(from: *const bf16) -> (Self::F, Self::F);
    /// Loads [`LANES`] 8-bit integers.
    unsafe fn widen_i8(from: *const i8) -> Self::F;
    /// Copies of an integer.
    unsafe fn splat_int(x: i32) -> Self::I;
    /// Loads [`LANES`] integers.
    unsafe fn load_ints(from: *const i32) -> Self::I;
    /// Loads [`CHUNK`] 8-bit integers as pairs: neighbours make a pair.
    unsafe fn pairs_in_row(from: *const i8) -> Self::I;
    /// Loads [`LANES`] 8-bit integers of each of two rows as pairs, in any order.
    unsafe fn pairs_of_rows(a: *const i8, b: *const i8) -> Self::I;
    /// Adds the products of pairs, `a.0 · b.0 + a.1 · b.1`, to `sum`.
    unsafe fn add_pairs(a: Self::I, b: Self::I, sum: Self::I) -> Self::I;
    /// Integer zeros in one register.
    unsafe fn no_int_sums() -> Self::R;
    /// Adds the products of pairs, as [`add_pairs`](Self::add_pairs) does, in one register.
    unsafe fn fold_pairs(a: Self::I, b: Self::I, sum: Self::R) -> Self::R;
    /// Sum of the integers of each of sixteen registers.
    unsafe fn int_sums(x: &[Self::R; LANES]) -> Self::F;
    /// Converts integers in the order of [`pairs_of_rows`](Self::pairs_of_rows) to f32, in the
    /// order of the rows.
    unsafe fn sorted_floats(x: Self::I) -> Self::F;
    /// Prefetches a cache line into the first-level cache.
    unsafe fn prefetch_near(line: *const u8);
    /// Prefetches a cache line into the second-level cache, which keeps more requests in flight
    /// than the first-level cache.
    unsafe fn prefetch_far(line: *const u8);
}

/// A computation that is compiled for each level.
pub(crate) trait SimdKernel {
    /// Result of the computation.
    type Output;

    /// Runs the computation. Implementations, and all functions that they call with `S`, must be
    /// `#[inline(always)]`.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Taylor coefficients `ln(2)^k / k!` of `2^x` for `k = 6 .. 0`, precise to 2e-7 on [-1/2, 1/2].
pub(crate) const EXP2: [f32; 7] =
    [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0];

/// Exponent to which [`Simd::exp2`] clamps smaller ones; the result is 0.
pub(crate) const EXP2_LEAST: f32 = -200.0;

/// Instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Default for Level {
    fn default() -> Self {
        Self::best()
    }
}

impl Level {
    /// Best level of this machine.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if wide && avx2 {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Scalar
    }

    /// Runs a kernel, compiled for this level.
    ///
    /// # Safety
    /// The kernel's pointers must be valid.
    ///
    /// # Panics
    /// If the level is above [`best`](Self::best).
    pub(crate) unsafe fn run<K: SimdKernel>(self, kernel: K) -> K::Output {
        assert!(self <= Self::best(), "this machine does not have {self:?}");
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => run_on_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => run_on_avx2(kernel),
            _ => run_on_scalars(kernel),
        }
    }

    /// All levels of this machine.
    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Scalar, Self::Avx2, Self::Avx512].into_iter().filter(|&level| level <= Self::best())
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline(never)]
unsafe fn run_on_avx512<K: SimdKernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn run_on_avx2<K: SimdKernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

#[inline(never)]
unsafe fn run_on_scalars<K: SimdKernel>(kernel: K) -> K::Output {
    kernel.run::<Scalar>()
}
