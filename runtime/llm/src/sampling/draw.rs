//! Random draws of tokens.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::filters::{TokenCandidate, largest_logit};

/// Random numbers of a seed, by their position in the stream.
#[derive(Debug)]
pub(super) struct RandomNumbers(ChaCha8Rng);

impl RandomNumbers {
    /// Starts the stream that ChaCha generates from the seed as its key.
    pub(super) fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Returns number `position` of the stream, in [0, 1).
    pub(super) fn get(&mut self, position: usize) -> f64 {
        /// 32-bit words of the stream per number.
        const WORDS: u128 = 2;
        self.0.set_word_pos(WORDS * position as u128);
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Returns the token at the share `position`, in [0, 1), of the cumulative softmax of the
/// candidates' logits, divided by the temperature.
pub(super) fn draw_at(
    candidates: &[TokenCandidate],
    temperature: f32,
    position: f64,
) -> Option<u32> {
    let (largest, temperature) = (largest_logit(candidates), f64::from(temperature));
    let weights = candidates
        .iter()
        .map(|candidate| ((f64::from(candidate.logit) - largest) / temperature).exp());
    let weights: Vec<f64> = weights.collect();
    let target = position * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let mut chosen = None;
    for (candidate, weight) in candidates.iter().zip(weights) {
        if weight > 0.0 {
            sum += weight;
            chosen = Some(candidate.token);
            if sum > target {
                break;
            }
        }
    }
    chosen
}
