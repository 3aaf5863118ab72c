//! Vectors of one 512-bit register.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{EXP2, EXP2_LEAST, LANES, Simd, SimdKernel};

/// AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type D = __m512;
    type R = __m512i;
    const WIDE: bool = true;
    const PREFETCHES: bool = true;

    #[inline(always)]
    unsafe fn call<K: SimdKernel>(kernel: K) -> K::Output {
        super::run_on_avx512(kernel)
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        _mm512_storeu_ps(to, x);
    }
    #[inline(always)]
    unsafe fn store_wide(to: *mut f64, x: __m512, factor: f64) {
        let factor = _mm512_set1_pd(factor);
        let (low, high) = widen_to_f64(x);
        _mm512_storeu_pd(to, _mm512_mul_pd(low, factor));
        _mm512_storeu_pd(to.add(LANES / 2), _mm512_mul_pd(high, factor));
    }
    #[inline(always)]
    unsafe fn add_wide(to: *mut f64, x: __m512) {
        let (low, high) = widen_to_f64(x);
        for (to, x) in [(to, low), (to.add(LANES / 2), high)] {
            _mm512_storeu_pd(to, _mm512_add_pd(_mm512_loadu_pd(to), x));
        }
    }
    #[inline(always)]
    unsafe fn rotate_by_one(x: __m512) -> __m512 {
        _mm512_permute_ps::<0b00_11_10_01>(x)
    }
    #[inline(always)]
    unsafe fn rotate_by_two(x: __m512) -> __m512 {
        _mm512_permute_ps::<0b01_00_11_10>(x)
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn exp2(x: __m512) -> __m512 {
        let x = _mm512_max_ps(x, _mm512_set1_ps(EXP2_LEAST));
        let whole = _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(x);
        let part = _mm512_sub_ps(x, whole);
        let mut power = _mm512_set1_ps(EXP2[0]);
        for c in &EXP2[1..] {
            power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(*c));
        }
        _mm512_scalef_ps(power, whole)
    }
    #[inline(always)]
    unsafe fn no_sums() -> __m512 {
        _mm512_setzero_ps()
    }
    #[inline(always)]
    unsafe fn fold(a: __m512, b: __m512, sum: __m512) -> __m512 {
        Self::fma(a, b, sum)
    }
    #[inline(always)]
    unsafe fn sums(x: &[__m512; LANES]) -> __m512 {
        sums(x, |a, b| _mm512_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn any_above(a: __m512, b: __m512) -> bool {
        _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) != 0
    }
    #[inline(always)]
    unsafe fn widen_f32(from: *const f32) -> (__m512, __m512) {
        (_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(LANES)))
    }
    #[inline(always)]
    unsafe fn widen_f16(from: *const f16) -> (__m512, __m512) {
        let half = |i: usize| _mm512_cvtph_ps(_mm256_loadu_si256(from.add(i).cast()));
        (half(0), half(LANES))
    }
    #[inline(always)]
    unsafe fn widen_bf16(from: *const bf16) -> (__m512, __m512) {
        let both = _mm512_loadu_si512(from.cast());
        let even = _mm512_slli_epi32::<16>(both);
        let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        (_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd))
    }
    #[inline(always)]
    unsafe fn widen_i8(from: *const i8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> __m512i {
        _mm512_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn load_ints(from: *const i32) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }
    #[inline(always)]
    unsafe fn pairs_in_row(from: *const i8) -> __m512i {
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    unsafe fn pairs_of_rows(a: *const i8, b: *const i8) -> __m512i {
        let widen = |row: *const i8| _mm512_cvtepi8_epi32(_mm_loadu_si128(row.cast()));
        _mm512_mask_blend_epi16(0xaaaa_aaaa, widen(a), _mm512_slli_epi32::<16>(widen(b)))
    }
    #[inline(always)]
    unsafe fn add_pairs(a: __m512i, b: __m512i, sum: __m512i) -> __m512i {
        _mm512_add_epi32(sum, _mm512_madd_epi16(a, b))
    }
    #[inline(always)]
    unsafe fn no_int_sums() -> __m512i {
        _mm512_setzero_si512()
    }
    #[inline(always)]
    unsafe fn fold_pairs(a: __m512i, b: __m512i, sum: __m512i) -> __m512i {
        Self::add_pairs(a, b, sum)
    }
    #[inline(always)]
    unsafe fn int_sums(x: &[__m512i; LANES]) -> __m512 {
        let mut bits = [_mm512_setzero_ps(); LANES];
        for (bits, x) in bits.iter_mut().zip(x) {
            *bits = _mm512_castsi512_ps(*x);
        }
        let add = |a, b| {
            let sum = _mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b));
            _mm512_castsi512_ps(sum)
        };
        _mm512_cvtepi32_ps(_mm512_castps_si512(sums(&bits, add)))
    }
    #[inline(always)]
    unsafe fn sorted_floats(x: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(x)
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

/// Converts elements to f64: the first half and the second.
#[inline(always)]
unsafe fn widen_to_f64(x: __m512) -> (__m512d, __m512d) {
    let high = _mm512_extractf32x8_ps::<1>(x);
    (_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(high))
}

/// Transposes and sums: pairs of vectors are interleaved and added, four times.
#[inline(always)]
unsafe fn sums(x: &[__m512; LANES], add: impl Fn(__m512, __m512) -> __m512) -> __m512 {
    let mut pairs = [_mm512_setzero_ps(); 8];
    for i in 0..8 {
        let (a, b) = (x[2 * i], x[2 * i + 1]);
        pairs[i] = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    let mut fours = [_mm512_setzero_ps(); 4];
    for i in 0..4 {
        let (a, b) = (_mm512_castps_pd(pairs[2 * i]), _mm512_castps_pd(pairs[2 * i + 1]));
        let low = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        let high = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        fours[i] = add(low, high);
    }
    let join = |a, b| {
        let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
        add(even, odd)
    };
    join(join(fours[0], fours[1]), join(fours[2], fours[3]))
}
