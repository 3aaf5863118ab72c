//! Which tokens are drawn between two thresholds.

use multiversion::multiversion;
use vattention_core::sample::Uniforms;

use super::level::uniform;
use super::sizes::is_drawn;

/// Tokens that are looked at together.
const LANES: usize = 64;

/// Tokens whose products are made together, to estimate how parallel values are.
const FOUR: usize = 4;

/// Appends the tokens that are drawn at threshold `t`, but not `before`, if there was a threshold
/// before. Four in succession lie far apart: neighbours may be alike. O(visible).
pub(super) fn draw(
    sizes: &[i16],
    uniforms: Uniforms,
    before: Option<i16>,
    t: i16,
    out: &mut Vec<u32>,
) {
    let mut found = Vec::new();
    find(sizes, uniforms, before, t, &mut found);
    let quarter = found.len() / FOUR;
    let fours = (0..quarter).flat_map(|i| (0..FOUR).map(move |part| part * quarter + i));
    out.extend(fours.chain(FOUR * quarter..found.len()).map(|place| found[place]));
}

/// Appends the tokens that are drawn, ascending.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn find(sizes: &[i16], uniforms: Uniforms, before: Option<i16>, t: i16, out: &mut Vec<u32>) {
    let (mut numbers, mut hits) = ([0_i16; LANES], [0_u8; LANES]);
    for (i, sizes) in sizes.chunks(LANES).enumerate() {
        let first = (i * LANES) as u32;
        for (lane, number) in numbers.iter_mut().enumerate() {
            *number = uniform(uniforms.at(first + lane as u32) >> 8);
        }
        hits[sizes.len()..].fill(0);
        for ((hit, &size), &number) in hits.iter_mut().zip(sizes).zip(&numbers) {
            *hit = u8::from(is_drawn(size, t, number));
        }
        if let Some(before) = before {
            for ((hit, &size), &number) in hits.iter_mut().zip(sizes).zip(&numbers) {
                *hit &= u8::from(!is_drawn(size, before, number));
            }
        }
        let mut bits = mask(&hits);
        while bits != 0 {
            out.push(first + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
}

/// A bit for each byte, which is 0 or 1.
#[inline(always)]
fn mask(bytes: &[u8; LANES]) -> u64 {
    // The product moves byte `i` to bit `56 + i`.
    const TO_BITS: u64 = 0x0102_0408_1020_4080;
    let bits = |eight: &[u8; 8]| u64::from_le_bytes(*eight).wrapping_mul(TO_BITS) >> 56;
    let eights = bytes.as_chunks::<8>().0.iter();
    eights.enumerate().fold(0, |mask, (i, eight)| mask | bits(eight) << (8 * i))
}
