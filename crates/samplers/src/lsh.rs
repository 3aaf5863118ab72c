//! `lsh`: the tokens that share the query's bucket in enough of many random hash tables, weighted.
//!
//! The selector `magic-pig` uses the same tables ([`HashTables`](vattention_index::HashTables)),
//! but gives weight 1 to every token that they find. Here a found token has the weight `1/π`. Its
//! inclusion probability π, at least 1e-9, is the probability that randomly drawn tables find the
//! token. The tokens of the last, incomplete block have `π = 1`.
//!
//! Cost: a scan of `2 · tables` bytes per token and query head, and one product for each token
//! found (authors: 10 bits and 150 tables, 300 bytes of index per token); appending a token takes
//! `bits · tables` products.
//!
//! # Guarantee
//! None. Sums are unbiased over the draw of the tables. But the tables are drawn once for a whole
//! sequence: errors do not average out over its steps, and draws of different tokens depend on each
//! other. So the error cannot be estimated from the sample, and the sample cannot grow: a pipeline
//! with this sampler has no estimator.
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
use vattention_index::{HashTableIndex, HashTables};

/// Tokens found by random hash tables, weighted by the inverse of their inclusion probabilities.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct LshSampler(pub HashTables);

#[typetag::serde(name = "lsh")]
impl SamplerConfig for LshSampler {
    fn build(&self, site: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(LshDraws(self.0.index("lsh", site)?)))
    }

    /// The default base, which has no effect: all tokens found are drawn, whatever the size.
    fn base(&self) -> Size {
        default_base()
    }

    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Nothing
    }

    fn shares(&self) -> bool {
        false
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct LshDraws(HashTableIndex);

impl Sampler for LshDraws {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.0.append(new);
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("draws random hash tables for its own sequence")
    }

    fn index_bytes(&self) -> usize {
        self.0.bytes()
    }

    fn design<'a>(
        &'a self,
        rows: &[Row<'a>],
        picks: &'a Picks,
        _: &Stream,
    ) -> Box<dyn Design + 'a> {
        let found = self.0.found(&rows[0]).filter(|&token| !picks.contains(token));
        let tokens: Vec<usize> = found.collect();
        let probabilities = self.0.probabilities(&rows[0], &tokens);
        Box::new(TableHits { tokens, probabilities })
    }
}

/// Tokens that the tables found. All of them are drawn, whatever the size.
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

    /// NaN for each token: the variance is unknown.
    fn factors(&self, _: usize) -> Vec<f64> {
        vec![f64::NAN; self.tokens.len()]
    }
}

register!(Sampler, "lsh", LshSampler, "tokens that random hash tables find, weighted; no promise");

#[cfg(test)]
mod tests;
