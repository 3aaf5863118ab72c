//! Samplers.

use serde::{Deserialize, Serialize};
use vattention_core::{
    NewTokens, Picks, Result, Row, Sampler, SamplerConfig, Site, Size, plugin::Design,
    sample::Uniforms, step::Stream, typetag,
};

/// Draws each token by itself, all with one probability; broken in one way, or none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ByItself {
    pub(crate) how: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Fault {
    None,
    /// Draws more than it says.
    Understates,
    /// Foretells a quarter of the variance.
    Confident,
    /// A larger sample is another one.
    Afresh,
    /// Draws what was taken.
    Greedy,
    /// Draws among tokens that the row does not see.
    LooksAhead,
    /// Returns one probability too few.
    Miscounts,
}

#[typetag::serde(name = "by-itself")]
impl SamplerConfig for ByItself {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(FaultySampler { how: self.how, tokens: 0 }))
    }

    fn base(&self) -> Size {
        Size::Tokens(16)
    }
}

#[derive(Clone)]
struct FaultySampler {
    how: Fault,
    tokens: usize,
}

impl Sampler for FaultySampler {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.tokens += new.keys.len();
    }

    fn design<'a>(
        &'a self,
        _: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        let left: Vec<usize> = match self.how {
            Fault::Greedy => (0..picks.visible()).collect(),
            Fault::LooksAhead => (0..self.tokens).filter(|&token| !picks.contains(token)).collect(),
            _ => picks.residual().collect(),
        };
        Box::new(Draws { how: self.how, uniforms: Uniforms::new(stream), left, p: 0.0, drawn: 0 })
    }
}

struct Draws {
    how: Fault,
    uniforms: Uniforms,
    left: Vec<usize>,
    p: f64,
    drawn: usize,
}

impl Draws {
    fn number(&self, token: usize) -> f64 {
        let number = f64::from(self.uniforms.number(token as u32)) / 2_f64.powi(32);
        // Above the probability that every token had before.
        if self.how == Fault::Afresh { (number + self.p) % 1.0 } else { number }
    }

    fn probability(&self, size: usize) -> f64 {
        (size as f64 / self.left.len() as f64).min(1.0)
    }
}

impl Design for Draws {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let (before, now) = (self.p, self.probability(size));
        let now = if self.how == Fault::Understates { (1.5 * now).min(1.0) } else { now };
        let joins =
            |&token: &usize| (before..now).contains(&self.number(token)).then_some(token as u32);
        let new: Vec<u32> = self.left.iter().filter_map(joins).collect();
        self.drawn += new.len();
        out.extend(new);
        self.p = now;
    }

    fn probabilities(&self) -> Vec<f64> {
        let stated =
            if self.how == Fault::Understates && self.p < 1.0 { self.p / 1.5 } else { self.p };
        let known = self.drawn - usize::from(self.how == Fault::Miscounts && self.drawn > 0);
        vec![stated; known]
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        let factor = (1.0 / self.probability(size) - 1.0) / self.p;
        vec![if self.how == Fault::Confident { factor / 4.0 } else { factor }; self.drawn]
    }
}
