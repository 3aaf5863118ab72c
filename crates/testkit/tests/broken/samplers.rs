//! Samplers with planted mistakes.

use serde::{Deserialize, Serialize};
use vattention_core::{
    NewTokens, Picks, Result, Row, Sampler, SamplerConfig, Site, Size, Tokens, plugin::Design,
    sample::Uniforms, step::Stream, typetag,
};

/// Draws tokens independently, all with the same probability, with at most one mistake.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Independent {
    pub(crate) fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Fault {
    None,
    /// Reports probabilities that are too small.
    Understates,
    /// Predicts a quarter of the variance.
    SmallVariance,
    /// Draws a larger sample from scratch.
    Redraws,
    /// Draws picked tokens.
    DrawsPicked,
    /// Draws tokens that are not visible.
    DrawsInvisible,
    /// Draws fewer tokens after some were removed.
    KeepsRemoved,
    /// Draws fewer tokens after its index was shared.
    LosesShared,
    /// Returns one probability too few.
    Miscounts,
}

#[typetag::serde(name = "independent")]
impl SamplerConfig for Independent {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(FaultySampler { fault: self.fault, tokens: 0, removed: false, shared: false }))
    }

    fn base(&self) -> Size {
        Size::Tokens(16)
    }
}

#[derive(Clone)]
struct FaultySampler {
    fault: Fault,
    tokens: usize,
    /// True if tokens were removed.
    removed: bool,
    shared: bool,
}

impl Sampler for FaultySampler {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.tokens += new.keys.len();
    }

    fn can_truncate(&self) -> bool {
        matches!(self.fault, Fault::None | Fault::KeepsRemoved | Fault::LosesShared)
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        let shares = matches!(self.fault, Fault::None | Fault::LosesShared);
        if shares { None } else { Some("has another fault") }
    }

    fn share(&mut self) {
        self.shared = true;
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.removed |= keys.len() < self.tokens;
        self.tokens = keys.len();
    }

    fn design<'a>(
        &'a self,
        _: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        let left: Vec<usize> = match self.fault {
            Fault::DrawsPicked => (0..picks.visible()).collect(),
            Fault::DrawsInvisible => {
                (0..self.tokens).filter(|&token| !picks.contains(token)).collect()
            }
            Fault::LosesShared if self.shared => picks.residual().skip(1).collect(),
            Fault::KeepsRemoved if self.removed => picks.residual().skip(1).collect(),
            _ => picks.residual().collect(),
        };
        let uniforms = Uniforms::new(stream);
        Box::new(Draws { fault: self.fault, uniforms, left, p: 0.0, drawn: 0 })
    }
}

struct Draws {
    fault: Fault,
    uniforms: Uniforms,
    left: Vec<usize>,
    p: f64,
    drawn: usize,
}

impl Draws {
    fn number(&self, token: usize) -> f64 {
        let number = f64::from(self.uniforms.number(token as u32)) / 2_f64.powi(32);
        // Tokens that were drawn, with numbers below `p`, get larger numbers.
        if self.fault == Fault::Redraws { (number + self.p) % 1.0 } else { number }
    }

    fn probability(&self, size: usize) -> f64 {
        (size as f64 / self.left.len() as f64).min(1.0)
    }
}

impl Design for Draws {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let (before, now) = (self.p, self.probability(size));
        let now = if self.fault == Fault::Understates { (1.5 * now).min(1.0) } else { now };
        let joins =
            |&token: &usize| (before..now).contains(&self.number(token)).then_some(token as u32);
        let new: Vec<u32> = self.left.iter().filter_map(joins).collect();
        self.drawn += new.len();
        out.extend(new);
        self.p = now;
    }

    fn probabilities(&self) -> Vec<f64> {
        let reported =
            if self.fault == Fault::Understates && self.p < 1.0 { self.p / 1.5 } else { self.p };
        let count = self.drawn - usize::from(self.fault == Fault::Miscounts && self.drawn > 0);
        vec![reported; count]
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        let factor = (1.0 / self.probability(size) - 1.0) / self.p;
        vec![if self.fault == Fault::SmallVariance { factor / 4.0 } else { factor }; self.drawn]
    }
}
