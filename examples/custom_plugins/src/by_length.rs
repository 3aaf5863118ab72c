//! `by-length`: Poisson sampling by the norms of the values.
//!
//! Token `i` is drawn, independently of others, with probability `π_i = min(1, t √(|v_i|² + m²))`,
//! where `m²` is the mean of `|v|²` over the visible tokens. The threshold `t` is such that the
//! expected sample size is the requested one. Without `m²` a value of 0 would never be drawn, and
//! its weight would be missing from the denominator.
//!
//! Cost: O(visible) for each check; 4 bytes per token.
//!
//! # Guarantee
//! Unbiased totals with variance `Σ x² (1/π − 1)`.

use serde::{Deserialize, Serialize};
use vattention::plugin::{
    Design, NewTokens, Picks, Result, Row, Sampler, SamplerConfig, Site, Size, Stream, Uniforms,
    register, schemars, typetag,
};

/// Configuration of `by-length`.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ByLength {
    /// Sample size at the first check.
    pub base: Size,
}

#[typetag::serde(name = "by-length")]
impl SamplerConfig for ByLength {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(ByLengthSampler::default()))
    }

    fn base(&self) -> Size {
        self.base
    }
}

/// Squared norms `|v|²` of the values of one KV head.
#[derive(Clone, Default)]
struct ByLengthSampler {
    squares: Vec<f32>,
}

impl Sampler for ByLengthSampler {
    fn append(&mut self, new: &NewTokens<'_>) {
        let mut value = vec![0.0; new.values.dim()];
        for token in 0..new.values.len() {
            new.values.copy_row(token, &mut value);
            self.squares.push(value.iter().map(|v| v * v).sum());
        }
    }

    fn index_bytes(&self) -> usize {
        size_of_val(&self.squares[..])
    }

    fn design<'a>(
        &'a self,
        _: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        let uniforms = Uniforms::new(stream);
        let uniform = |token: usize| f64::from(uniforms.number(token as u32)) / 2_f64.powi(32);
        let square = |token: usize| f64::from(self.squares[token]);
        let mean = (0..picks.visible()).map(square).sum::<f64>() / picks.visible() as f64;
        // If all values are 0, all tokens have the same inclusion probability.
        let size = |token: usize| (square(token) + mean).sqrt().max(f64::MIN_POSITIVE);
        let size_of = |token: usize| (token, size(token), uniform(token));
        let left = picks.residual().map(size_of).collect();
        Box::new(Poisson { left, threshold: 0.0, drawn: Vec::new() })
    }
}

/// A Poisson design: independent draws.
struct Poisson {
    /// Each untaken token, its size, and its uniform random number.
    left: Vec<(usize, f64, f64)>,
    threshold: f64,
    /// Sizes of the drawn tokens, in draw order.
    drawn: Vec<f64>,
}

impl Poisson {
    /// Threshold at which the expected sample size is `tokens`.
    fn threshold(&self, tokens: usize) -> f64 {
        if tokens >= self.left.len() {
            return f64::INFINITY;
        }
        let expected =
            |t: f64| self.left.iter().map(|(_, size, _)| probability(t, *size)).sum::<f64>();
        let (mut low, mut high) = (0.0, 1.0 / self.left[0].1);
        while expected(high) < tokens as f64 {
            high *= 2.0;
        }
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if expected(middle) < tokens as f64 { low = middle } else { high = middle }
        }
        high
    }
}

fn probability(t: f64, size: f64) -> f64 {
    (t * size).min(1.0)
}

impl Design for Poisson {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let next = self.threshold(size).max(self.threshold);
        for &(token, size, uniform) in &self.left {
            let [drawn, in_next] = [self.threshold, next].map(|t| uniform < probability(t, size));
            if in_next && !drawn {
                out.push(token as u32);
                self.drawn.push(size);
            }
        }
        self.threshold = next;
    }

    fn probabilities(&self) -> Vec<f64> {
        self.drawn.iter().map(|&size| probability(self.threshold, size)).collect()
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        let next = self.threshold(size).max(self.threshold);
        let factor = |&size: &f64| {
            let [current, extended] = [self.threshold, next].map(|t| probability(t, size));
            (1.0 / extended - 1.0) / current
        };
        self.drawn.iter().map(factor).collect()
    }
}

register!(Sampler, "by-length", ByLength, "drawn by the norms of the values");

#[cfg(test)]
vattention_testkit::sampler_laws!(base_of_16, ByLength { base: Size::Tokens(16) });
