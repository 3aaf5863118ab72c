//! Draws of the tokens between two thresholds.

use multiversion::multiversion;
use vattention_core::sample::Uniforms;

use super::level::uniform;
use super::sizes::draw_bound;

/// Number of tokens that are compared together.
const LANES: usize = 64;

/// Appends the tokens that are drawn at threshold `t` but not at `before`, the last threshold.
///
/// The order of the appended tokens is random: neighbouring tokens may be alike, and estimators
/// pair tokens that follow each other in the sample. O(visible).
pub(super) fn draw(
    sizes: &[i16],
    uniforms: Uniforms,
    before: Option<i16>,
    t: i16,
    out: &mut Vec<u32>,
) {
    let first = out.len();
    append_ascending(sizes, uniforms, before, t, out);
    // No token has the index `u32::MAX`, so its random number is not used for a draw.
    let seed = u64::from(uniforms.number(u32::MAX)) << 32 | u64::from(t as u16);
    shuffle(&mut out[first..], seed);
}

/// Shuffles tokens (Fisher, Yates) by the upper halves of a linear congruential sequence (Knuth).
fn shuffle(tokens: &mut [u32], seed: u64) {
    let mut state = seed;
    for last in (1..tokens.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = ((state >> 32) * (last as u64 + 1)) >> 32;
        tokens.swap(last, other as usize);
    }
}

/// Appends the tokens that are drawn at threshold `t` but not at `before`, ascending.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn append_ascending(
    sizes: &[i16],
    uniforms: Uniforms,
    before: Option<i16>,
    t: i16,
    out: &mut Vec<u32>,
) {
    let (mut numbers, mut hits) = ([0_i16; LANES], [0_u8; LANES]);
    for (i, sizes) in sizes.chunks(LANES).enumerate() {
        let first = (i * LANES) as u32;
        for (lane, number) in numbers.iter_mut().enumerate() {
            *number = uniform(uniforms.number(first + lane as u32) >> 8);
        }
        hits[sizes.len()..].fill(0);
        for ((hit, &size), &number) in hits.iter_mut().zip(sizes).zip(&numbers) {
            *hit = u8::from(number < draw_bound(size, t));
        }
        if let Some(before) = before {
            for ((hit, &size), &number) in hits.iter_mut().zip(sizes).zip(&numbers) {
                *hit &= u8::from(number >= draw_bound(size, before));
            }
        }
        let mut bits = pack_bits(&hits);
        while bits != 0 {
            out.push(first + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
}

/// Packs bytes, each of which is 0 or 1, into bits.
#[inline(always)]
fn pack_bits(bytes: &[u8; LANES]) -> u64 {
    // The product moves byte `i` to bit `56 + i`.
    const TO_BITS: u64 = 0x0102_0408_1020_4080;
    let bits = |eight: &[u8; 8]| u64::from_le_bytes(*eight).wrapping_mul(TO_BITS) >> 56;
    let eights = bytes.as_chunks::<8>().0.iter();
    eights.enumerate().fold(0, |mask, (i, eight)| mask | bits(eight) << (8 * i))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts of each token at each place, and of neighbours that stay neighbours, are within
    /// six standard deviations of their means under uniform permutations.
    #[test]
    fn shuffled_tokens_are_in_random_order() {
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
