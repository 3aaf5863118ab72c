//! Vectors as arrays: runs anywhere, and is what the other levels are compared with.

use half::{bf16, f16};

use super::{EXP2, EXP2_LEAST, LANES, Simd};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; LANES];

impl Simd for Scalar {
    type F = F;
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> F {
        from.cast::<F>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: F) {
        to.cast::<F>().write_unaligned(x);
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn exp2(x: F) -> F {
        x.map(|x| {
            let x = x.max(EXP2_LEAST);
            let whole = x.round_ties_even();
            let part = x - whole;
            let power = EXP2.into_iter().reduce(|sum, c| sum * part + c).unwrap_or_default();
            // In two steps, so that neither factor leaves the range of f32.
            let half = (whole / 2.0).floor();
            power * half.exp2() * (whole - half).exp2()
        })
    }
    #[inline(always)]
    unsafe fn sums(x: &[F; LANES]) -> F {
        x.map(|x| x.iter().sum())
    }
    #[inline(always)]
    unsafe fn any_above(a: F, b: F) -> bool {
        a.iter().zip(&b).any(|(a, b)| a > b)
    }
    #[inline(always)]
    unsafe fn widen_f32(from: *const f32) -> (F, F) {
        (Self::load(from), Self::load(from.add(LANES)))
    }
    #[inline(always)]
    unsafe fn widen_f16(from: *const f16) -> (F, F) {
        let at = |i: usize| (*from.add(i)).to_f32();
        (std::array::from_fn(at), std::array::from_fn(|i| at(LANES + i)))
    }
    #[inline(always)]
    unsafe fn widen_bf16(from: *const bf16) -> (F, F) {
        let at = |i: usize| (*from.add(i)).to_f32();
        (std::array::from_fn(|i| at(2 * i)), std::array::from_fn(|i| at(2 * i + 1)))
    }
    #[inline(always)]
    unsafe fn prefetch_near(_: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_far(_: *const u8) {}
}
