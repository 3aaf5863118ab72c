//! Predictions by VNNI, for a block at a time: one instruction multiplies four pairs of bytes and
//! adds the products.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use half::bf16;
use vattention_core::step::prefetch_after;

use super::{AHEAD, BLOCK, LogitRow, integers};

/// Number of tokens in a register.
const LANES: usize = 16;

/// Number of registers for a block.
const REGISTERS: usize = BLOCK / LANES;

/// Version of [`predict_block`](super::predict_block) for VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(in super::super) fn predict_block<const H: usize>(
    words: &[u32],
    factors: &[bf16; BLOCK],
    block: usize,
    rows: &mut [LogitRow<'_>; H],
) {
    prefetch_after(factors, AHEAD);
    let queries = integers(rows);
    let three = _mm512_set1_epi8(3);
    let mut sums = [[_mm512_setzero_si512(); REGISTERS]; H];
    for (j, words) in words.as_chunks::<BLOCK>().0.iter().enumerate() {
        prefetch_after(words, AHEAD);
        let mut codes: [__m512i; REGISTERS] = bytemuck::must_cast(*words);
        for place in 4 * j..4 * j + 4 {
            let low = codes.map(|codes| _mm512_and_si512(codes, three));
            for (sums, query) in sums.iter_mut().zip(&queries) {
                let query = _mm512_set1_epi32(query[place] as i32);
                for (sum, low) in sums.iter_mut().zip(low) {
                    *sum = _mm512_dpbusd_epi32(*sum, low, query);
                }
            }
            codes = codes.map(|codes| _mm512_srli_epi32::<2>(codes));
        }
    }
    let factors: [__m256i; REGISTERS] = bytemuck::must_cast(factors.map(bf16::to_bits));
    let factors = factors.map(|factors| {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(factors)))
    });
    for (row, sums) in rows.iter_mut().zip(sums) {
        let middle = _mm512_set1_epi32(row.query.middle);
        let unit = _mm512_set1_ps(row.query.unit);
        let centre = _mm512_set1_ps(row.centres[block]);
        let mut logits = [_mm512_setzero_ps(); REGISTERS];
        for register in 0..REGISTERS {
            let twice = _mm512_sub_epi32(_mm512_add_epi32(sums[register], sums[register]), middle);
            let unit = _mm512_mul_ps(unit, factors[register]);
            logits[register] = _mm512_fmadd_ps(unit, _mm512_cvtepi32_ps(twice), centre);
        }
        row.out[block] = bytemuck::must_cast(logits);
    }
}
