//! Implementation with two 256-bit registers for sixteen outputs, and products of pairs of bytes.
//!
//! `vpmaddubsw` adds two products in sixteen bits, and saturates. A nibble times a digit is at most
//! 15 · 127, so a lane's sixteen products of a block are added without saturation. Bytes are
//! multiplied as signed numbers: their magnitude times a digit that has taken their sign; 2 · 128 ·
//! 127 does not saturate either.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use super::super::codebook::LEAST_POWER;
use super::{
    AHEAD, ActivationRow, CacheLine, Format, Instructions, LANES, LaneExponents, LaneFactors,
    LaneNumbers, OutputGroup, RowProducts, multiply_rows,
};

/// Kernel of AVX2, FMA and F16C.
struct Avx2Kernel;

/// # Safety
/// The conditions are those of [`InstructionSet::multiply`](super::InstructionSet::multiply).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<F: Format>(
    rows: &[ActivationRow],
    group: OutputGroup<'_>,
    out: &mut RowProducts,
) {
    unsafe { multiply_rows::<Avx2Kernel, F>(rows, group, out) }
}

#[inline(always)]
fn map_both<A: Copy, B>(a: [A; 2], f: impl Fn(A) -> B) -> [B; 2] {
    [f(a[0]), f(a[1])]
}

#[inline(always)]
fn map_pairs<A: Copy, B: Copy, C>(a: [A; 2], b: [B; 2], f: impl Fn(A, B) -> C) -> [C; 2] {
    [f(a[0], b[0]), f(a[1], b[1])]
}

impl Instructions for Avx2Kernel {
    type Bytes = [__m256i; 2];
    type NibbleSums = [__m256i; 2];
    type Integers = [__m256i; 2];
    type Floats = [__m256; 2];
    const BYTE_ZERO: i32 = 0;

    #[inline(always)]
    unsafe fn load(from: *const CacheLine) -> [__m256i; 2] {
        let from = from.cast::<__m256i>();
        unsafe { [_mm256_load_si256(from), _mm256_load_si256(from.add(1))] }
    }
    #[inline(always)]
    unsafe fn low_nibbles(bytes: [__m256i; 2]) -> [__m256i; 2] {
        map_both(bytes, |bytes| unsafe { _mm256_and_si256(bytes, _mm256_set1_epi8(15)) })
    }
    #[inline(always)]
    unsafe fn high_nibbles(bytes: [__m256i; 2]) -> [__m256i; 2] {
        map_both(bytes, |bytes| unsafe {
            _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15))
        })
    }
    #[inline(always)]
    unsafe fn look_up(codebook: &[u8; 16], nibbles: [__m256i; 2]) -> [__m256i; 2] {
        map_both(nibbles, |nibbles| unsafe {
            let codebook = _mm_loadu_si128(codebook.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codebook), nibbles)
        })
    }
    #[inline(always)]
    unsafe fn zero_nibble_sums() -> [__m256i; 2] {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn dot_nibbles(sums: [__m256i; 2], q: [__m256i; 2], x: [i8; 4]) -> [__m256i; 2] {
        unsafe {
            let x = broadcast(x);
            map_pairs(sums, q, |sum, q| _mm256_add_epi16(sum, _mm256_maddubs_epi16(q, x)))
        }
    }
    #[inline(always)]
    unsafe fn finish(sums: [__m256i; 2]) -> [__m256i; 2] {
        map_both(sums, |sum| unsafe { _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) })
    }
    #[inline(always)]
    unsafe fn join_bits<const BITS: usize>(
        low: [__m256i; 2],
        high: [__m256i; 2],
        from: usize,
    ) -> [__m256i; 2] {
        let mask = ((1 << BITS) - 1) << 4;
        map_pairs(low, high, |low, high| unsafe {
            let high = if from <= 4 {
                _mm256_sll_epi16(high, _mm_cvtsi64_si128(4 - from as i64))
            } else {
                _mm256_srl_epi16(high, _mm_cvtsi64_si128(from as i64 - 4))
            };
            _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(mask)))
        })
    }
    #[inline(always)]
    unsafe fn dot_six_bits(sums: [__m256i; 2], q: [__m256i; 2], x: [i8; 4]) -> [__m256i; 2] {
        unsafe {
            let x = broadcast(x);
            map_pairs(sums, q, |sum, q| {
                let two = _mm256_maddubs_epi16(q, x);
                _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)))
            })
        }
    }
    #[inline(always)]
    unsafe fn dot_bytes(sums: [__m256i; 2], q: [__m256i; 2], x: [i8; 4]) -> [__m256i; 2] {
        unsafe {
            let x = broadcast(x);
            map_pairs(sums, q, |sum, q| {
                let q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
                let two = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
                _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)))
            })
        }
    }
    #[inline(always)]
    unsafe fn integers(x: i32) -> [__m256i; 2] {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn sub(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        map_pairs(a, b, |a, b| unsafe { _mm256_sub_epi32(a, b) })
    }
    #[inline(always)]
    unsafe fn next_digit(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        map_pairs(a, b, |a, b| unsafe {
            _mm256_add_epi32(_mm256_sub_epi32(_mm256_slli_epi32::<8>(a), a), b)
        })
    }
    #[inline(always)]
    unsafe fn to_floats(x: [__m256i; 2]) -> [__m256; 2] {
        map_both(x, |x| unsafe { _mm256_cvtepi32_ps(x) })
    }
    #[inline(always)]
    unsafe fn floats(x: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load_numbers(from: *const LaneNumbers) -> [__m256; 2] {
        let from = from.cast::<u16>();
        map_both([from, unsafe { from.add(LANES / 2) }], |from| unsafe {
            _mm256_cvtph_ps(_mm_loadu_si128(from.cast()))
        })
    }
    #[inline(always)]
    unsafe fn load_exponents(from: *const LaneExponents) -> [__m256; 2] {
        let from = from.cast::<u8>();
        map_both([from, unsafe { from.add(LANES / 2) }], |from| unsafe {
            let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            let least = _mm256_set1_epi32(LEAST_POWER as i32);
            let powers = _mm256_max_epi32(_mm256_slli_epi32::<23>(exponents), least);
            _mm256_mul_ps(_mm256_castsi256_ps(powers), _mm256_set1_ps(0.5))
        })
    }
    #[inline(always)]
    unsafe fn load_factors(from: *const LaneFactors) -> [__m256; 2] {
        let from = from.cast::<i8>();
        map_both([from, unsafe { from.add(LANES / 2) }], |from| unsafe {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))
        })
    }
    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        map_pairs(a, b, |a, b| unsafe { _mm256_mul_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        map_pairs(a, b, |a, b| unsafe { _mm256_add_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn store(to: &mut [f32; LANES], x: [__m256; 2]) {
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(LANES / 2), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const CacheLine) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) }
    }
}

#[inline(always)]
unsafe fn broadcast(x: [i8; 4]) -> __m256i {
    unsafe { _mm256_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8))) }
}
