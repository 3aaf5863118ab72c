//! Implementation with one 512-bit register for sixteen outputs, and VNNI's products of four bytes.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use super::super::codebook::LEAST_POWER;
use super::{
    AHEAD, ActivationRow, CacheLine, Format, Instructions, LANES, LaneExponents, LaneFactors,
    LaneNumbers, OutputGroup, RowProducts, multiply_rows,
};

/// Kernel of AVX-512 F, BW, DQ, VL and VNNI.
struct Avx512Vnni;

/// # Safety
/// The conditions are those of [`InstructionSet::multiply`](super::InstructionSet::multiply).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn multiply<F: Format>(
    rows: &[ActivationRow],
    group: OutputGroup<'_>,
    out: &mut RowProducts,
) {
    unsafe { multiply_rows::<Avx512Vnni, F>(rows, group, out) }
}

impl Instructions for Avx512Vnni {
    type Bytes = __m512i;
    type NibbleSums = __m512i;
    type Integers = __m512i;
    type Floats = __m512;
    const BYTE_ZERO: i32 = 128;

    #[inline(always)]
    unsafe fn load(from: *const CacheLine) -> __m512i {
        unsafe { _mm512_load_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn low_nibbles(bytes: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(bytes, _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn high_nibbles(bytes: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn look_up(codebook: &[u8; 16], nibbles: __m512i) -> __m512i {
        unsafe {
            let codebook = _mm_loadu_si128(codebook.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(codebook), nibbles)
        }
    }
    #[inline(always)]
    unsafe fn zero_nibble_sums() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn dot_nibbles(sums: __m512i, q: __m512i, x: [i8; 4]) -> __m512i {
        unsafe { Self::dot_bytes(sums, q, x) }
    }
    #[inline(always)]
    unsafe fn finish(sums: __m512i) -> __m512i {
        sums
    }
    #[inline(always)]
    unsafe fn join_bits<const BITS: usize>(low: __m512i, high: __m512i, from: usize) -> __m512i {
        let mask = ((1 << BITS) - 1) << 4;
        unsafe {
            let high = if from <= 4 {
                _mm512_sll_epi16(high, _mm_cvtsi64_si128(4 - from as i64))
            } else {
                _mm512_srl_epi16(high, _mm_cvtsi64_si128(from as i64 - 4))
            };
            _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi8(mask)))
        }
    }
    #[inline(always)]
    unsafe fn dot_six_bits(sums: __m512i, q: __m512i, x: [i8; 4]) -> __m512i {
        unsafe { Self::dot_bytes(sums, q, x) }
    }
    #[inline(always)]
    unsafe fn dot_bytes(sums: __m512i, q: __m512i, x: [i8; 4]) -> __m512i {
        let x = i32::from_le_bytes(x.map(|x| x as u8));
        unsafe { _mm512_dpbusd_epi32(sums, q, _mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn integers(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn next_digit(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32::<8>(a), a), b) }
    }
    #[inline(always)]
    unsafe fn to_floats(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn floats(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_numbers(from: *const LaneNumbers) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_exponents(from: *const LaneExponents) -> __m512 {
        unsafe {
            let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let least = _mm512_set1_epi32(LEAST_POWER as i32);
            let powers = _mm512_max_epi32(_mm512_slli_epi32::<23>(exponents), least);
            _mm512_mul_ps(_mm512_castsi512_ps(powers), _mm512_set1_ps(0.5))
        }
    }
    #[inline(always)]
    unsafe fn load_factors(from: *const LaneFactors) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(to: &mut [f32; LANES], x: __m512) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const CacheLine) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) }
    }
}
