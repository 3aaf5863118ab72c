//! With which probability each token is drawn, at any threshold.

use vattention_core::Picks;

use super::index::Scan;
use super::uniform::Uniforms;

/// No token's size is less than this share of all, so that none is impossible to draw.
const LEAST: f64 = 1.0 / (1_u64 << 40) as f64;

/// The sizes of the tokens that are not picked yet, and a uniform number for each.
///
/// At a threshold `t` a token is drawn with probability `min(1, t size)`, independently of others:
/// if its uniform number is below that. What is drawn at one threshold is drawn at a larger one.
#[derive(Debug)]
pub(super) struct Design {
    /// The tokens, ascending, `[left]`.
    tokens: Vec<u32>,
    /// Of each, `[left]`; they sum to 1, or hardly more.
    sizes: Vec<f64>,
    /// The logarithm of what they summed to before.
    log_total: f64,
    uniforms: Uniforms,
}

impl Design {
    /// `size = e^score √(|v|² + m²)`, `m²` the mean of `|v|²` weighted by `e^score`. O(visible).
    pub(super) fn new(scan: &Scan<'_>, picks: &Picks, uniforms: Uniforms) -> Self {
        let tokens: Vec<u32> = picks.residual().map(|token| token as u32).collect();
        let square = mean_square(scan);
        let scores = || tokens.iter().map(|&token| f64::from(scan.scores[token as usize]));
        let most = scores().fold(f64::NEG_INFINITY, f64::max);
        let norms = tokens.iter().map(|&token| f64::from(scan.norms[token as usize]));
        let sizes: Vec<f64> = scores()
            .zip(norms)
            .map(|(score, norm)| libm::exp(score - most) * (norm * norm + square).sqrt())
            .collect();
        Self::of(tokens, sizes, most, uniforms)
    }

    /// Of tokens with sizes that need not sum to 1, and are relative to a logit `shift`.
    pub(super) fn of(
        tokens: Vec<u32>,
        mut sizes: Vec<f64>,
        shift: f64,
        uniforms: Uniforms,
    ) -> Self {
        let total: f64 = sizes.iter().sum();
        for size in &mut sizes {
            *size = (*size / total).max(LEAST);
        }
        Self { tokens, sizes, log_total: total.ln() + shift, uniforms }
    }

    /// `Σ e^score √(|v|² + m²)`, relative to a logit.
    pub(super) fn total(&self, shift: f64) -> f64 {
        (self.log_total - shift).exp()
    }

    /// Tokens that are not picked yet.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn token(&self, place: usize) -> usize {
        self.tokens[place] as usize
    }

    /// The probability with which the token at a place is drawn.
    pub(super) fn probability(&self, place: usize, t: f64) -> f32 {
        (t * self.sizes[place]).min(1.0) as f32
    }

    /// Whether it is drawn.
    pub(super) fn is_drawn(&self, place: usize, t: f64) -> bool {
        self.uniforms.at(self.token(place)) < f64::from(self.probability(place, t))
    }

    /// How many tokens are drawn on average.
    pub(super) fn expected(&self, t: f64) -> f64 {
        self.sizes.iter().map(|size| (t * size).min(1.0)).sum()
    }

    /// The threshold at which so many are drawn on average, fewer than there are.
    ///
    /// Those that are certain at a threshold are taken out, and it is raised for the others, until
    /// no more are: a handful of passes.
    pub(super) fn threshold(&self, expected: f64) -> f64 {
        let mut t = expected;
        loop {
            let (mut certain, mut rest) = (0_usize, 0.0);
            for &size in &self.sizes {
                if t * size >= 1.0 {
                    certain += 1;
                } else {
                    rest += size;
                }
            }
            let next = (expected - certain as f64) / rest;
            if next.partial_cmp(&t) != Some(std::cmp::Ordering::Greater) {
                return t;
            }
            t = next;
        }
    }
}

fn mean_square(scan: &Scan<'_>) -> f64 {
    let most = scan.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut weights, mut squares) = (0.0, 0.0);
    for (&score, &norm) in scan.scores.iter().zip(scan.norms) {
        let e = libm::exp(f64::from(score) - f64::from(most));
        weights += e;
        squares += e * f64::from(norm).powi(2);
    }
    squares / weights
}
