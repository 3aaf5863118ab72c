//! Vectors as arrays, for any machine. The other levels are tested against them.

use half::{bf16, f16};

use super::{CHUNK, EXP2, EXP2_LEAST, LANES, Simd, SimdKernel};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type Lanes = [f32; LANES];

impl Simd for Scalar {
    type F = Lanes;
    type I = [i32; LANES];
    type D = Lanes;
    type R = [i32; LANES];
    const WIDE: bool = false;
    const PREFETCHES: bool = false;

    #[inline(always)]
    unsafe fn call<K: SimdKernel>(kernel: K) -> K::Output {
        super::run_on_scalars(kernel)
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Lanes {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Lanes {
        from.cast::<Lanes>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Lanes) {
        to.cast::<Lanes>().write_unaligned(x);
    }
    #[inline(always)]
    unsafe fn store_wide(to: *mut f64, x: Lanes, factor: f64) {
        to.cast::<[f64; LANES]>().write_unaligned(x.map(|x| f64::from(x) * factor));
    }
    #[inline(always)]
    unsafe fn add_wide(to: *mut f64, x: Lanes) {
        for (i, x) in x.into_iter().enumerate() {
            *to.add(i) += f64::from(x);
        }
    }
    #[inline(always)]
    unsafe fn rotate_by_one(x: Lanes) -> Lanes {
        std::array::from_fn(|i| x[i / 4 * 4 + (i + 1) % 4])
    }
    #[inline(always)]
    unsafe fn rotate_by_two(x: Lanes) -> Lanes {
        std::array::from_fn(|i| x[i ^ 2])
    }
    #[inline(always)]
    unsafe fn add(a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn min(a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn max(a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn exp2(x: Lanes) -> Lanes {
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
    unsafe fn no_sums() -> Lanes {
        [0.0; LANES]
    }
    #[inline(always)]
    unsafe fn fold(a: Lanes, b: Lanes, sum: Lanes) -> Lanes {
        Self::fma(a, b, sum)
    }
    #[inline(always)]
    unsafe fn sums(x: &[Lanes; LANES]) -> Lanes {
        x.map(|x| x.iter().sum())
    }
    #[inline(always)]
    unsafe fn any_above(a: Lanes, b: Lanes) -> bool {
        a.iter().zip(&b).any(|(a, b)| a > b)
    }
    #[inline(always)]
    unsafe fn widen_f32(from: *const f32) -> (Lanes, Lanes) {
        (Self::load(from), Self::load(from.add(LANES)))
    }
    #[inline(always)]
    unsafe fn widen_f16(from: *const f16) -> (Lanes, Lanes) {
        convert_f16(&*from.cast())
    }
    #[inline(always)]
    unsafe fn widen_bf16(from: *const bf16) -> (Lanes, Lanes) {
        let element = |i: usize| (*from.add(i)).to_f32();
        (std::array::from_fn(|i| element(2 * i)), std::array::from_fn(|i| element(2 * i + 1)))
    }
    #[inline(always)]
    unsafe fn widen_i8(from: *const i8) -> Lanes {
        std::array::from_fn(|i| f32::from(*from.add(i)))
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> [i32; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_ints(from: *const i32) -> [i32; LANES] {
        from.cast::<[i32; LANES]>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn pairs_in_row(from: *const i8) -> [i32; LANES] {
        std::array::from_fn(|i| pair(*from.add(2 * i), *from.add(2 * i + 1)))
    }
    #[inline(always)]
    unsafe fn pairs_of_rows(a: *const i8, b: *const i8) -> [i32; LANES] {
        std::array::from_fn(|i| pair(*a.add(i), *b.add(i)))
    }
    #[inline(always)]
    unsafe fn add_pairs(a: [i32; LANES], b: [i32; LANES], sum: [i32; LANES]) -> [i32; LANES] {
        let low = |x: i32| i32::from(x as i16);
        let high = |x: i32| x >> 16;
        std::array::from_fn(|i| sum[i] + low(a[i]) * low(b[i]) + high(a[i]) * high(b[i]))
    }
    #[inline(always)]
    unsafe fn no_int_sums() -> [i32; LANES] {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn fold_pairs(a: [i32; LANES], b: [i32; LANES], sum: [i32; LANES]) -> [i32; LANES] {
        Self::add_pairs(a, b, sum)
    }
    #[inline(always)]
    unsafe fn int_sums(x: &[[i32; LANES]; LANES]) -> Lanes {
        x.map(|x| x.iter().sum::<i32>() as f32)
    }
    #[inline(always)]
    unsafe fn sorted_floats(x: [i32; LANES]) -> Lanes {
        x.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn prefetch_near(_: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_far(_: *const u8) {}
}

/// Converts half-precision numbers. It is not inlined, because its code is long without an
/// instruction for it, and the kernels have many calls.
#[inline(never)]
fn convert_f16(numbers: &[f16; CHUNK]) -> (Lanes, Lanes) {
    let element = |i: usize| numbers[i].to_f32();
    (std::array::from_fn(element), std::array::from_fn(|i| element(LANES + i)))
}

/// Pair of 16-bit integers; the first is in the low half.
#[inline(always)]
fn pair(first: i8, second: i8) -> i32 {
    i32::from(first) & 0xffff | i32::from(second) << 16
}
