//! Products by VNNI, for a block at a time: one instruction multiplies four pairs of bytes and adds
//! the products.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use super::{BLOCK, BlockProducts, QUERIES_PER_PASS};

/// Number of tokens in a register.
const LANES: usize = 16;

/// Number of registers for a block.
const REGISTERS: usize = BLOCK / LANES;

/// Products of a block's codes with `H` queries.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(in super::super) fn products<const H: usize>(
    words: &[u32],
    queries: [&[u32]; QUERIES_PER_PASS],
    out: &mut [BlockProducts; QUERIES_PER_PASS],
) {
    let three = _mm512_set1_epi8(3);
    let mut sums = [[_mm512_setzero_si512(); REGISTERS]; H];
    for (j, words) in words.as_chunks::<BLOCK>().0.iter().enumerate() {
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
    for (out, sums) in out.iter_mut().zip(sums) {
        *out = bytemuck::must_cast(sums);
    }
}
