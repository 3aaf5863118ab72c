//! `uniform`: a simple random sample of the residual, without replacement. The default.
//!
//! The sample consists of the first unpicked tokens in a keyed random order of all visible tokens,
//! so that a larger sample contains a smaller one. Each token is drawn with probability `b / n_s`.
//!
//! Drawing costs O(b · visible / n_s) per token list. There is no index.
//!
//! # Guarantee
//! Totals are unbiased and have variance `n_s² S² (1/b − 1/n_s)` (docs/guarantees.md, eq. 3). The
//! weights of tokens that a sample may have missed are bounded only if selectors prove a bound.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Result, Size,
    plugin::{Design, Sampler, SamplerConfig},
    register,
    sample::{Draws, Order, Stratification},
    step::{Picks, Row, Site, Stream},
};

/// A sample in which every token of the residual is as likely as any other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Uniform {
    /// Size at the first check. With a size of 1 every token is read, because one token has no
    /// variance.
    #[serde(default = "default_base")]
    pub base: Size,
}

/// Default `base` of samplers: the size at the first check.
pub const fn default_base() -> Size {
    Size::Tokens(128)
}

impl Uniform {
    /// Sampler with the default base.
    pub const DEFAULT: Self = Self { base: default_base() };
}

impl Default for Uniform {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[typetag::serde(name = "uniform")]
impl SamplerConfig for Uniform {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(UniformSampler))
    }

    fn base(&self) -> Size {
        self.base
    }

    fn is_uniform(&self) -> bool {
        true
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
struct UniformSampler;

impl Sampler for UniformSampler {
    fn can_truncate(&self) -> bool {
        true
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn design<'a>(
        &'a self,
        _: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        let draws = Order::new(picks.visible(), stream).draws();
        Box::new(UniformDesign { draws, picks, drawn: 0, n_s: picks.visible() - picks.len() })
    }
}

struct UniformDesign<'a> {
    draws: Draws,
    picks: &'a Picks,
    drawn: usize,
    n_s: usize,
}

impl Design for UniformDesign<'_> {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let more = size.min(self.n_s).saturating_sub(self.drawn);
        self.draws.fill(self.picks, more, out);
        self.drawn += more;
    }

    fn probabilities(&self) -> Vec<f64> {
        vec![self.drawn as f64 / self.n_s as f64; self.drawn]
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        let (n_s, size) = (self.n_s as f64, size as f64);
        let factor = n_s * n_s * (1.0 / size - 1.0 / n_s) / (self.drawn as f64 - 1.0);
        vec![factor; self.drawn]
    }

    fn strata(&self) -> Option<Stratification> {
        Some(Stratification::single(self.drawn))
    }
}

register!(Sampler, "uniform", Uniform, "every token as likely as any other (default)");
