//! Sixteen f32 elements at a time, whatever the machine has to do it with.
//!
//! Kernels are written once, over [`Simd`], and compiled for each [`Level`]; [`Scalar`] is plain
//! Rust, which checks the others. Everything here is `unsafe` for two reasons: it reads through
//! pointers that the caller vouches for, and it may use instructions that only the entry point
//! of a kernel has checked for.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
mod scalar;

pub(crate) use element::{Element, from_lanes, to_lanes};
pub(crate) use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512};

use half::{bf16, f16};

/// Elements of a vector.
pub(crate) const LANES: usize = 16;

/// Elements that a row is read by: two vectors.
pub(crate) const CHUNK: usize = 2 * LANES;

/// Sixteen elements on a cache line of their own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; LANES]);

/// Vectors of [`LANES`] f32 elements.
///
/// # Safety
/// The machine must have the instructions of the implementation, and pointers must be valid for
/// as many numbers as are read or written. All functions are inlined into a function that is
/// compiled for these instructions.
pub(crate) trait Simd: Copy {
    /// A vector.
    type F: Copy;

    /// Whether there are registers for sixteen sums at once, or for four.
    const WIDE: bool;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `2^x` with a relative error below 3e-7; 0 far below, for `x ≤ 127`.
    unsafe fn exp2(x: Self::F) -> Self::F;
    /// The sum of each of sixteen vectors.
    unsafe fn sums(x: &[Self::F; LANES]) -> Self::F;
    /// Whether any number of `a` is greater than its counterpart in `b`.
    unsafe fn any_above(a: Self::F, b: Self::F) -> bool;
    /// [`CHUNK`] elements, the first half and the second.
    unsafe fn widen_f32(from: *const f32) -> (Self::F, Self::F);
    /// The same of half-precision numbers.
    unsafe fn widen_f16(from: *const f16) -> (Self::F, Self::F);
    /// [`CHUNK`] brain floats: the even ones, and the odd ones.
    unsafe fn widen_bf16(from: *const bf16) -> (Self::F, Self::F);
    /// Requests a cache line for the first-level cache.
    unsafe fn prefetch_near(at: *const u8);
    /// Requests a cache line for the second-level cache, which keeps more requests in flight than
    /// the first.
    unsafe fn prefetch_far(at: *const u8);
}

/// What is compiled for each level.
pub(crate) trait Kernel {
    /// What it computes.
    type Output;

    /// Computes it; to be marked `#[inline(always)]`, like all that it calls with `S`.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// `ln(2)^k / k!` for `k = 6 .. 0`: the series of `2^x`, good to 2e-7 on [-1/2, 1/2].
pub(crate) const EXP2: [f32; 7] =
    [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0];

/// The least exponent that [`Simd::exp2`] looks at; smaller ones give 0.
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
    /// The best of this machine.
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
    /// As the kernel's, but for the instructions: the level must be at most [`best`](Self::best).
    ///
    /// # Panics
    /// If it is not.
    pub(crate) unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        assert!(self <= Self::best(), "{self:?} is not of this machine");
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => on_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => on_avx2(kernel),
            _ => kernel.run::<Scalar>(),
        }
    }

    /// All levels that this machine has.
    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Scalar, Self::Avx2, Self::Avx512].into_iter().filter(|&level| level <= Self::best())
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn on_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn on_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}
