//! Draws between two thresholds.

use multiversion::multiversion;
use vattention_core::sample::Uniforms;

use super::level::uniform;
use super::sizes::bound;

/// Tokens that are looked at together.
const LANES: usize = 64;

/// Appends the tokens that are drawn at threshold `t`, but not `before`, if there was a threshold
/// before, in random order: neighbours may be alike, and pairs of a sample must not be. O(visible).
pub(super) fn draw(
    sizes: &[i16],
    uniforms: Uniforms,
    before: Option<i16>,
    t: i16,
    out: &mut Vec<u32>,
) {
    let known = out.len();
    find(sizes, uniforms, before, t, out);
    // No token has this number.
    let seed = u64::from(uniforms.number(u32::MAX)) << 32 | u64::from(t as u16);
    shuffle(&mut out[known..], seed);
}

/// Puts tokens in a random order (Fisher, Yates), by the upper halves of a linear congruential
/// sequence (Knuth).
fn shuffle(tokens: &mut [u32], seed: u64) {
    let mut state = seed;
    for last in (1..tokens.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = ((state >> 32) * (last as u64 + 1)) >> 32;
        tokens.swap(last, place as usize);
    }
}

/// Appends the tokens that are drawn, ascending.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn find(sizes: &[i16], uniforms: Uniforms, before: Option<i16>, t: i16, out: &mut Vec<u32>) {
    let (mut numbers, mut hits) = ([0_i16; LANES], [0_u8; LANES]);
    for (i, sizes) in sizes.chunks(LANES).enumerate() {
        let first = (i * LANES) as u32;
        for (lane, number) in numbers.iter_mut().enumerate() {
            *number = uniform(uniforms.number(first + lane as u32) >> 8);
        }
        hits[sizes.len()..].fill(0);
        for ((hit, &size), &number) in hits.iter_mut().zip(sizes).zip(&numbers) {
            *hit = u8::from(number < bound(size, t));
        }
        if let Some(before) = before {
            for ((hit, &size), &number) in hits.iter_mut().zip(sizes).zip(&numbers) {
                *hit &= u8::from(number >= bound(size, before));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each token is in each place, and two neighbours stay neighbours, as often as chance has it,
    /// within six deviations.
    #[test]
    fn a_shuffled_list_is_in_random_order() {
        const TRIALS: u32 = 20_000;
        let (mut places, mut neighbours) = ([[0_u32; 8]; 8], 0_u32);
        for trial in 0..TRIALS {
            let mut tokens: Vec<u32> = (0..8).collect();
            shuffle(&mut tokens, u64::from(trial) << 32);
            tokens.iter().zip(&mut places).for_each(|(&token, place)| place[token as usize] += 1);
            neighbours += tokens.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as u32;
        }
        let far = |count: u32, mean: f64, variance: f64| {
            (f64::from(count) - mean).abs() > 6.0 * (f64::from(TRIALS) * variance).sqrt()
        };
        let mean = f64::from(TRIALS) / 8.0;
        assert!(places.as_flattened().iter().all(|&count| !far(count, mean, 0.11)), "{places:?}");
        assert!(!far(neighbours, 7.0 * mean, 1.0), "{neighbours} neighbours");
    }
}
