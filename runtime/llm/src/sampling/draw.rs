//! Random draws of tokens.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::filters::{TokenCandidate, largest_logit};

/// Stream of random numbers of a seed, with access by position.
#[derive(Debug)]
pub(super) struct RandomNumbers(ChaCha8Rng);

impl RandomNumbers {
    /// Creates the ChaCha stream whose key is the seed.
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

/// Returns the first token at which the cumulative probability exceeds `position`, in [0, 1). The
/// probabilities are the softmax of the candidates' logits divided by the temperature.
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
