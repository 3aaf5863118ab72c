//! Vectors of two 256-bit registers.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{EXP2, EXP2_LEAST, LANES, Simd, SimdKernel};

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Elements of a register.
const HALF: usize = LANES / 2;

/// Number of f64 in a register.
const QUARTER: usize = LANES / 4;

type Halves = (__m256, __m256);
type IntHalves = (__m256i, __m256i);

impl Simd for Avx2 {
    type F = Halves;
    type I = IntHalves;
    type D = __m256;
    type R = __m256i;
    const WIDE: bool = false;
    const PREFETCHES: bool = true;

    #[inline(always)]
    unsafe fn call<K: SimdKernel>(kernel: K) -> K::Output {
        super::run_on_avx2(kernel)
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Halves {
        (_mm256_set1_ps(x), _mm256_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Halves {
        (_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(HALF)))
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Halves) {
        _mm256_storeu_ps(to, x.0);
        _mm256_storeu_ps(to.add(HALF), x.1);
    }
    #[inline(always)]
    unsafe fn store_wide(to: *mut f64, x: Halves, factor: f64) {
        let factor = _mm256_set1_pd(factor);
        for (i, x) in widen_to_f64(x).into_iter().enumerate() {
            _mm256_storeu_pd(to.add(i * QUARTER), _mm256_mul_pd(x, factor));
        }
    }
    #[inline(always)]
    unsafe fn add_wide(to: *mut f64, x: Halves) {
        for (i, x) in widen_to_f64(x).into_iter().enumerate() {
            let to = to.add(i * QUARTER);
            _mm256_storeu_pd(to, _mm256_add_pd(_mm256_loadu_pd(to), x));
        }
    }
    #[inline(always)]
    unsafe fn rotate_by_one(x: Halves) -> Halves {
        const ORDER: i32 = 0b00_11_10_01;
        (_mm256_permute_ps::<ORDER>(x.0), _mm256_permute_ps::<ORDER>(x.1))
    }
    #[inline(always)]
    unsafe fn rotate_by_two(x: Halves) -> Halves {
        const ORDER: i32 = 0b01_00_11_10;
        (_mm256_permute_ps::<ORDER>(x.0), _mm256_permute_ps::<ORDER>(x.1))
    }
    #[inline(always)]
    unsafe fn add(a: Halves, b: Halves) -> Halves {
        (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1))
    }
    #[inline(always)]
    unsafe fn sub(a: Halves, b: Halves) -> Halves {
        (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1))
    }
    #[inline(always)]
    unsafe fn mul(a: Halves, b: Halves) -> Halves {
        (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1))
    }
    #[inline(always)]
    unsafe fn div(a: Halves, b: Halves) -> Halves {
        (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1))
    }
    #[inline(always)]
    unsafe fn min(a: Halves, b: Halves) -> Halves {
        (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1))
    }
    #[inline(always)]
    unsafe fn max(a: Halves, b: Halves) -> Halves {
        (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1))
    }
    #[inline(always)]
    unsafe fn fma(a: Halves, b: Halves, c: Halves) -> Halves {
        (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1))
    }
    #[inline(always)]
    unsafe fn exp2(x: Halves) -> Halves {
        (exp2(x.0), exp2(x.1))
    }
    #[inline(always)]
    unsafe fn no_sums() -> __m256 {
        _mm256_setzero_ps()
    }
    #[inline(always)]
    unsafe fn fold(a: Halves, b: Halves, sum: __m256) -> __m256 {
        _mm256_fmadd_ps(a.1, b.1, _mm256_fmadd_ps(a.0, b.0, sum))
    }
    #[inline(always)]
    unsafe fn sums(x: &[__m256; LANES]) -> Halves {
        (sums(&x[..HALF]), sums(&x[HALF..]))
    }
    #[inline(always)]
    unsafe fn any_above(a: Halves, b: Halves) -> bool {
        let low = _mm256_cmp_ps::<_CMP_GT_OQ>(a.0, b.0);
        let high = _mm256_cmp_ps::<_CMP_GT_OQ>(a.1, b.1);
        _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
    }
    #[inline(always)]
    unsafe fn widen_f32(from: *const f32) -> (Halves, Halves) {
        (Self::load(from), Self::load(from.add(LANES)))
    }
    #[inline(always)]
    unsafe fn widen_f16(from: *const f16) -> (Halves, Halves) {
        let part = |i: usize| _mm256_cvtph_ps(_mm_loadu_si128(from.add(i * HALF).cast()));
        ((part(0), part(1)), (part(2), part(3)))
    }
    #[inline(always)]
    unsafe fn widen_bf16(from: *const bf16) -> (Halves, Halves) {
        let split = |i: usize| {
            let both = _mm256_loadu_si256(from.add(i).cast());
            let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd))
        };
        let ((even_low, odd_low), (even_high, odd_high)) = (split(0), split(LANES));
        ((even_low, even_high), (odd_low, odd_high))
    }
    #[inline(always)]
    unsafe fn widen_i8(from: *const i8) -> Halves {
        let half = |i: usize| {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(i).cast())))
        };
        (half(0), half(HALF))
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> IntHalves {
        (_mm256_set1_epi32(x), _mm256_set1_epi32(x))
    }
    #[inline(always)]
    unsafe fn load_ints(from: *const i32) -> IntHalves {
        (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(HALF).cast()))
    }
    #[inline(always)]
    unsafe fn pairs_in_row(from: *const i8) -> IntHalves {
        (widen_bytes(from), widen_bytes(from.add(LANES)))
    }
    /// The first half has the columns 0 to 3 and 8 to 11, the second half the others.
    #[inline(always)]
    unsafe fn pairs_of_rows(a: *const i8, b: *const i8) -> IntHalves {
        let (a, b) = (widen_bytes(a), widen_bytes(b));
        (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b))
    }
    #[inline(always)]
    unsafe fn add_pairs(a: IntHalves, b: IntHalves, sum: IntHalves) -> IntHalves {
        (
            _mm256_add_epi32(sum.0, _mm256_madd_epi16(a.0, b.0)),
            _mm256_add_epi32(sum.1, _mm256_madd_epi16(a.1, b.1)),
        )
    }
    #[inline(always)]
    unsafe fn no_int_sums() -> __m256i {
        _mm256_setzero_si256()
    }
    #[inline(always)]
    unsafe fn fold_pairs(a: IntHalves, b: IntHalves, sum: __m256i) -> __m256i {
        let sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a.0, b.0));
        _mm256_add_epi32(sum, _mm256_madd_epi16(a.1, b.1))
    }
    #[inline(always)]
    unsafe fn int_sums(x: &[__m256i; LANES]) -> Halves {
        let (low, high) = (int_sums(&x[..HALF]), int_sums(&x[HALF..]));
        (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
    }
    #[inline(always)]
    unsafe fn sorted_floats(x: IntHalves) -> Halves {
        let low = _mm256_permute2x128_si256::<0x20>(x.0, x.1);
        let high = _mm256_permute2x128_si256::<0x31>(x.0, x.1);
        (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
    }
    #[inline(always)]
    unsafe fn prefetch_near(line: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[inline(always)]
    unsafe fn prefetch_far(line: *const u8) {
        _mm_prefetch::<_MM_HINT_T1>(line.cast());
    }
}

/// Converts elements to f64, a quarter of them in each register.
#[inline(always)]
unsafe fn widen_to_f64(x: Halves) -> [__m256d; 4] {
    let low = |half| _mm256_cvtps_pd(_mm256_castps256_ps128(half));
    let high = |half| _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(half));
    [low(x.0), high(x.0), low(x.1), high(x.1)]
}

/// Loads sixteen 8-bit integers as 16-bit integers.
#[inline(always)]
unsafe fn widen_bytes(from: *const i8) -> __m256i {
    _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()))
}

#[inline(always)]
unsafe fn exp2(x: __m256) -> __m256 {
    let x = _mm256_max_ps(x, _mm256_set1_ps(EXP2_LEAST));
    let whole = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let part = _mm256_sub_ps(x, whole);
    let mut power = _mm256_set1_ps(EXP2[0]);
    for c in &EXP2[1..] {
        power = _mm256_fmadd_ps(power, part, _mm256_set1_ps(*c));
    }
    // In two steps, so that neither factor leaves the range of f32.
    let whole = _mm256_cvtps_epi32(whole);
    let half = _mm256_srai_epi32::<1>(whole);
    let rest = _mm256_sub_epi32(whole, half);
    _mm256_mul_ps(_mm256_mul_ps(power, power_of_two(half)), power_of_two(rest))
}

/// `2^i` for `-126 ≤ i ≤ 127`.
#[inline(always)]
unsafe fn power_of_two(i: __m256i) -> __m256 {
    let biased = _mm256_add_epi32(i, _mm256_set1_epi32(127));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
}

/// Sums of eight registers.
#[inline(always)]
unsafe fn sums(x: &[__m256]) -> __m256 {
    let pair = |i: usize| _mm256_hadd_ps(x[i], x[i + 1]);
    let (low, high) = (_mm256_hadd_ps(pair(0), pair(2)), _mm256_hadd_ps(pair(4), pair(6)));
    let first = _mm256_permute2f128_ps::<0x20>(low, high);
    let second = _mm256_permute2f128_ps::<0x31>(low, high);
    _mm256_add_ps(first, second)
}

/// Sums of eight registers of integers.
#[inline(always)]
unsafe fn int_sums(x: &[__m256i]) -> __m256i {
    let pair = |i: usize| _mm256_hadd_epi32(x[i], x[i + 1]);
    let (low, high) = (_mm256_hadd_epi32(pair(0), pair(2)), _mm256_hadd_epi32(pair(4), pair(6)));
    let first = _mm256_permute2x128_si256::<0x20>(low, high);
    let second = _mm256_permute2x128_si256::<0x31>(low, high);
    _mm256_add_epi32(first, second)
}
