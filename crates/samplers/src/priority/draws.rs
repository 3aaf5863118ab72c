//! Draws of the tokens between two thresholds.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, __m512i, _mm256_cmpgt_epi8, _mm256_movemask_epi8, _mm256_setzero_si256,
    _mm512_test_epi8_mask,
};

use multiversion::multiversion;
use multiversion::target::match_target;
use vattention_core::sample::Uniforms;
use vattention_core::step::Scratch;

use super::level::uniform;
use super::row_levels::padded;
use super::sizes::{FIXED, LEAST};

/// Number of tokens whose draws are computed together.
const LANES: usize = 64;

/// Entry level of a token that is drawn at every threshold.
const ALWAYS: i16 = i16::MIN;

/// Entry level of a token that is drawn at no threshold.
const NEVER: i16 = i16::MAX;

/// Entry level of each token: the token is drawn at all thresholds above its entry level.
#[derive(Debug)]
pub(super) struct EntryLevels {
    /// `[visible]`.
    levels: Scratch<i16>,
    /// Seed of the random order of the draws.
    seed: u32,
}

impl EntryLevels {
    /// Computes the entry levels of tokens from their sizes. O(visible).
    pub(super) fn new(sizes: &[i16], uniforms: Uniforms) -> Self {
        let mut levels = Scratch::new(sizes.len());
        set_entries(sizes, uniforms, &mut levels);
        // No token has the index `u32::MAX`, so its random number is not used for a draw.
        Self { levels, seed: uniforms.number(u32::MAX) }
    }

    /// Appends the tokens that are drawn at threshold `t` but not at `before`, the last threshold.
    /// One pass over 2 bytes per token.
    ///
    /// The order of the appended tokens is random: neighbouring tokens may be alike, and estimators
    /// pair tokens that follow each other in the sample.
    pub(super) fn draw(&self, before: Option<i16>, t: i16, out: &mut Vec<u32>) {
        let first = out.len();
        append_between(&self.levels, before.unwrap_or(ALWAYS), t, out);
        let seed = u64::from(self.seed) << 32 | u64::from(t as u16);
        shuffle(&mut out[first..], seed);
    }
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

/// Writes the entry level of each token to `out`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn set_entries(sizes: &[i16], uniforms: Uniforms, out: &mut [i16]) {
    let (whole, rest) = sizes.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (i, (sizes, out)) in whole.iter().zip(out).enumerate() {
        *out = entries(sizes, uniforms, (i * LANES) as u32);
    }
    let last = entries(&padded(rest, FIXED), uniforms, (whole.len() * LANES) as u32);
    out_rest.copy_from_slice(&last[..rest.len()]);
}

/// Entry levels of the tokens from `first` on.
#[inline(always)]
fn entries(sizes: &[i16; LANES], uniforms: Uniforms, first: u32) -> [i16; LANES] {
    let mut entries = [0; LANES];
    for (lane, entry) in entries.iter_mut().enumerate() {
        *entry = uniform(uniforms.number(first + lane as u32) >> 8);
    }
    for (entry, &size) in entries.iter_mut().zip(sizes) {
        // At the threshold `t`, a token with the uniform level `u` is drawn if `u < size + t`.
        let level = if *entry < LEAST { ALWAYS } else { entry.wrapping_sub(size) };
        *entry = if size == FIXED { NEVER } else { level };
    }
    entries
}

/// Number of tokens that are collected before they are appended.
const COLLECTED: usize = 256;

/// Number of tokens of a chunk that are collected without branches; few chunks have more.
const USUAL: usize = 4;

/// Appends the tokens whose entry levels are at least `from` and below `to`, ascending.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c+bmi1+popcnt",
    "x86_64+avx2+fma+bmi1+popcnt"
))]
fn append_between(entries: &[i16], from: i16, to: i16, out: &mut Vec<u32>) {
    let (whole, rest) = entries.as_chunks::<LANES>();
    let last = padded(rest, NEVER);
    let mut hits = [0_u8; LANES];
    let (mut tokens, mut len) = ([0; COLLECTED + LANES], 0);
    for i in 0..=whole.len() {
        let (entries, first) = (whole.get(i).unwrap_or(&last), (i * LANES) as u32);
        for lane in 0..LANES {
            hits[lane] = u8::from(entries[lane] >= from) & u8::from(entries[lane] < to);
        }
        #[allow(unsafe_code, unused_unsafe, reason = "safe only in a version for these machines")]
        let mut bits = match_target! {
            // SAFETY: These arms are compiled only where their instructions are enabled: by this
            // version of the function, or for the whole build.
            "x86_64+avx512f+avx512bw" => unsafe { pack_bits_avx512(&hits) },
            // SAFETY: As above.
            "x86_64+avx2" => unsafe { pack_bits_avx2(&hits) },
            _ => pack_bits(&hits),
        };
        let count = bits.count_ones() as usize;
        let (usual, others) = tokens[len..len + LANES].split_at_mut(USUAL);
        for token in usual {
            *token = first + bits.trailing_zeros();
            bits &= bits.wrapping_sub(1);
        }
        if bits != 0 {
            for token in &mut others[..count - USUAL] {
                *token = first + bits.trailing_zeros();
                bits &= bits - 1;
            }
        }
        len += count;
        if len > COLLECTED {
            out.extend_from_slice(&tokens[..len]);
            len = 0;
        }
    }
    out.extend_from_slice(&tokens[..len]);
}

/// Packs bytes, each of which is 0 or 1, into bits.
#[inline(always)]
#[allow(dead_code, reason = "a build for AVX2 or AVX-512 alone never calls it")]
fn pack_bits(bytes: &[u8; LANES]) -> u64 {
    bytes.iter().rev().fold(0, |bits, &byte| bits << 1 | u64::from(byte))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_bits_avx512(bytes: &[u8; LANES]) -> u64 {
    let bytes: __m512i = bytemuck::must_cast(*bytes);
    _mm512_test_epi8_mask(bytes, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[allow(dead_code, reason = "a build for AVX-512 alone never calls it")]
fn pack_bits_avx2(bytes: &[u8; LANES]) -> u64 {
    let halves: [__m256i; 2] = bytemuck::must_cast(*bytes);
    let [low, high] = halves.map(|half| {
        let ones = _mm256_cmpgt_epi8(half, _mm256_setzero_si256());
        u64::from(_mm256_movemask_epi8(ones) as u32)
    });
    low | high << 32
}

#[cfg(test)]
mod tests {
    use vattention_core::{Shape, Site, step::Stream};

    use super::super::level::{ONE, STEPS};
    use super::super::sizes::{EVERYTHING, probability_level};
    use super::*;

    /// All versions for this machine pack the same bits.
    #[test]
    fn bytes_are_packed_in_order() {
        let bytes: [u8; LANES] = std::array::from_fn(|i| u8::from(i * i % 7 < 3));
        let bits = pack_bits(&bytes);
        for (i, &byte) in bytes.iter().enumerate() {
            assert_eq!(bits >> i & 1, u64::from(byte), "{i}");
        }
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code, reason = "the machine's instructions are tested")]
        // SAFETY: Each function is called only on a machine with its instructions.
        unsafe {
            if is_x86_feature_detected!("avx2") {
                assert_eq!(pack_bits_avx2(&bytes), bits);
            }
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                assert_eq!(pack_bits_avx512(&bytes), bits);
            }
        }
    }

    /// Draws at successive thresholds are the tokens whose uniform level is below that of their
    /// probability.
    #[test]
    fn tokens_are_drawn_if_their_uniform_level_is_below_their_probability() {
        let uniforms = Uniforms::new(&Stream::new(&site(), 0, 0, 0));
        let sizes: Vec<i16> = (0..1000).map(|i| ONE - i * 9).collect();
        let sizes: Vec<i16> = [&sizes[..], &[FIXED, FIXED]].concat();
        let (entries, mut drawn, mut last) = (EntryLevels::new(&sizes, uniforms), Vec::new(), None);
        for t in [-100 * STEPS, 3, 5 * STEPS, EVERYTHING] {
            entries.draw(last, t, &mut drawn);
            let mut ascending = drawn.clone();
            ascending.sort_unstable();
            let is_drawn = |&token: &u32| {
                let size = sizes[token as usize];
                let level = uniform(uniforms.number(token) >> 8);
                size != FIXED && level < probability_level(size, t)
            };
            assert!(ascending.into_iter().eq((0..1002).filter(is_drawn)), "{t}");
            last = Some(t);
        }
        assert_eq!(drawn.len(), 1000);
    }

    fn site() -> Site {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        Site { seed: 7, sequence: 0, layer: 0, kv_head: 0, shape }
    }

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
