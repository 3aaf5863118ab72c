//! Candidates by instructions that move what a mask chooses to the front.

#[allow(clippy::wildcard_imports, reason = "most of it is used here")]
use std::arch::x86_64::*;

use super::{DrawCandidate, LANES};

/// Those of a few tokens that are drawn at up to a threshold; `None` if none is.
#[target_feature(enable = "avx512f")]
pub(super) fn found(
    first: u32,
    uniforms: [u32; LANES],
    from: [f32; LANES],
    far: f32,
) -> Option<DrawCandidate> {
    let thresholds: __m512 = bytemuck::must_cast(from);
    let found = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(thresholds, _mm512_set1_ps(far));
    if found == 0 {
        return None;
    }
    let lanes: [u32; LANES] = std::array::from_fn(|lane| first + lane as u32);
    let chosen = |of: [u32; LANES]| -> [u32; LANES] {
        bytemuck::must_cast(_mm512_maskz_compress_epi32(found, bytemuck::must_cast(of)))
    };
    Some(DrawCandidate {
        count: found.count_ones() as usize,
        tokens: chosen(lanes),
        uniforms: chosen(uniforms),
        from: bytemuck::must_cast(_mm512_maskz_compress_ps(found, thresholds)),
    })
}
