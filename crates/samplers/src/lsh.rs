//! `lsh`: the tokens that fall into the query's bucket in enough of many random hash tables, weighed.
//!
//! Tables, and what they find, are those of the selector `magic-pig`
//! ([`HashTables`](vattention_index::HashTables)), which takes for certain what they find. Here a
//! token that is found weighs `1/π`, π being the probability over the draw of the tables that it is,
//! 1e-9 at the least; the tokens of the last, incomplete block are certain.
//!
//! Cost: a scan of `2 · tables` bytes per token and query head, and one product for each token that
//! is found (authors: 10 bits and 150 tables, 300 bytes of index per token); appending a token is
//! `bits · tables` products.
//!
//! # Guarantee
//! None. Sums are unbiased, but over the draw of the tables, which is one for a whole sequence: errors
//! do not average out over its steps, and draws of different tokens depend on each other. So a sample
//! tells nothing of its error and cannot grow: no estimator may follow.
//!
//! Chen, Sadhukhan, Ye, Zhou, Zhang, Nolte, Tian, Douze, Bottou, Jia, Chen (2024), "MagicPIG: LSH
//! Sampling for Efficient LLM Generation", <https://arxiv.org/abs/2410.16179>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Sampler, SamplerConfig, Site, Size,
    plugin::{Design, SampleEvidence, default_base},
    register,
    step::Stream,
    typetag,
};
use vattention_index::{HashTables, Hashed};

/// Tokens found by many random hash tables, weighed by the probability of being found.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct LshSampler(pub HashTables);

#[typetag::serde(name = "lsh")]
impl SamplerConfig for LshSampler {
    fn build(&self, site: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(LshDraws(self.0.index("lsh", site)?)))
    }

    /// There is one check, of the tokens that the tables find.
    fn base(&self) -> Size {
        default_base()
    }

    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Nothing
    }

    fn shares(&self) -> bool {
        false
    }
}

#[derive(Clone)]
struct LshDraws(Hashed);

impl Sampler for LshDraws {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.0.append(new);
    }

    fn index_bytes(&self) -> usize {
        self.0.bytes()
    }

    fn design<'a>(
        &'a self,
        readers: &[Row<'a>],
        picks: &'a Picks,
        _: &Stream,
    ) -> Box<dyn Design + 'a> {
        let found = self.0.found(&readers[0]).filter(|&token| !picks.contains(token));
        let found: Vec<usize> = found.collect();
        let p = self.0.probabilities(&readers[0], &found);
        Box::new(TableHits { tokens: found, probabilities: p })
    }
}

/// Tokens that the tables found: all there is to draw.
struct TableHits {
    tokens: Vec<usize>,
    probabilities: Vec<f64>,
}

impl Design for TableHits {
    fn extend(&mut self, _: usize, out: &mut Vec<u32>) {
        out.extend(self.tokens.iter().map(|&token| token as u32));
    }

    fn probabilities(&self) -> Vec<f64> {
        self.probabilities.clone()
    }

    /// Nothing is known.
    fn factors(&self, _: usize) -> Vec<f64> {
        vec![f64::NAN; self.tokens.len()]
    }
}

register!(Sampler, "lsh", LshSampler, "what random hash tables find, weighed; no promise");

#[cfg(test)]
mod tests;
