//! The sampler plug-in: how tokens are drawn from the residual.

use std::any::Any;
use std::fmt::Debug;

use dyn_clone::DynClone;

use crate::{
    Result, Size,
    plugin::NewTokens,
    sample::{Sample, Stratification, Unseen},
    step::{Picks, Row, Site, Stream},
};

/// The `[sampler]` table of a pipeline file: parameters, no state. Without a `type` it is `uniform`.
#[typetag::serde(tag = "type", default_variant = "uniform")]
pub trait SamplerConfig: Any + Debug + DynClone + Send + Sync {
    /// Builds the worker of one KV head, before any token has arrived.
    ///
    /// # Errors
    /// [`Error::Build`](crate::Error::Build) if the site's shape does not fit.
    fn build(&self, site: &Site) -> Result<Box<dyn Sampler>>;

    /// Tokens at the first check of the residual.
    fn base(&self) -> Size;

    /// The evidence of a sample's own error.
    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Variances
    }

    /// True if draws are uniform, without replacement, in the [order](crate::sample::Order) that the
    /// stream keys.
    fn is_uniform(&self) -> bool {
        false
    }

    /// True if query heads that read one list can share a sample.
    fn shares(&self) -> bool {
        true
    }

    /// True if it needs the [scores](Picks::scores) of the selectors.
    fn wants_scores(&self) -> bool {
        false
    }
}

dyn_clone::clone_trait_object!(SamplerConfig);

/// Evidence of a sample's error: what a sampler gives, and what an estimator needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SampleEvidence {
    /// None, as draws depend on each other; nor can the sample grow. No estimator may follow.
    Nothing,
    /// The variances of the sums that the sample estimates, at its size and at any larger one.
    Variances,
    /// The largest weight that a token of a uniform sample can have, which selectors
    /// [prove](crate::plugin::SelectorConfig::bounds_residual).
    Range,
    /// A theorem for every finite sample: for a uniform sample from that range, else the design's
    /// [own](Design::proof) for the output.
    Proof,
}

/// Draws for the queries of one KV head of one layer of one sequence. Cloning it forks it.
pub trait Sampler: DynClone + Send + Sync {
    /// Indexes new tokens, in order, as they are stored.
    ///
    /// Rows that see fewer tokens may follow: their draws may not depend on tokens that they do not
    /// see.
    fn append(&mut self, new: &NewTokens<'_>) {
        let _ = new;
    }

    /// Bytes of its index beside keys and values, counting only what grows with the tokens.
    fn index_bytes(&self) -> usize {
        0
    }

    /// The design that completes one list. `readers`, at least one row, all of the same step, read it
    /// together. `picks` are always read; `stream` has the list's random numbers.
    fn design<'a>(
        &'a self,
        readers: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a>;
}

dyn_clone::clone_trait_object!(Sampler);

impl Debug for dyn Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sampler")
    }
}

/// A sampling design at work on the residual of one list: the `n_s` tokens that nobody took.
///
/// A size is the expected number of drawn tokens. A total `Σ x` over the residual is estimated by
/// `Σ x / π` over the sample, which is unbiased, π being the probability of inclusion.
pub trait Design {
    /// Draws on to a larger size, and appends the new tokens to `out`. Drawn tokens stay drawn; at a size of
    /// `n_s` every token is drawn.
    fn extend(&mut self, size: usize, out: &mut Vec<u32>);

    /// π of each token drawn so far, in draw order, in (0, 1].
    fn probabilities(&self) -> Vec<f64>;

    /// φ of each token drawn so far: at the current size or a larger one `Σ φ |x − m|²` is on
    /// average the total's variance at least. `m` is the centre of the token's
    /// [stratum](Self::strata), or 0 without strata.
    ///
    /// Uniform: `n_s² (1/size − 1/n_s) / (b − 1)`. Independent draws: `(1/π(size) − 1) / π`. Within
    /// strata: `N_h² (1/n_h(size) − 1/N_h)` divided by the stratum's
    /// [degrees of freedom](Stratification::degrees_of_freedom).
    fn factors(&self, size: usize) -> Vec<f64>;

    /// The strata of the tokens drawn so far, if tokens are drawn without replacement within strata;
    /// `None` if each is drawn independently of the others.
    fn strata(&self) -> Option<Stratification> {
        None
    }

    /// A bound on the weights that a sample of a size may miss, relative to the logit `shift`, for
    /// one of the readers.
    fn unseen(&self, reader: usize, size: usize, shift: f64) -> Option<Unseen> {
        let _ = (reader, size, shift);
        None
    }

    /// The radii of the output of one reader that a theorem for finite samples proves: at the current
    /// size from the `sample` itself, at larger ones predicted.
    fn proof<'a>(
        &'a self,
        sample: &'a Sample<'_>,
        reader: usize,
        terms: &ProofTerms,
    ) -> Option<SampleProof<'a>> {
        let _ = (sample, reader, terms);
        None
    }
}

/// Relative errors that are exceeded with probability delta at most, by a theorem.
#[allow(missing_debug_implementations)]
pub struct SampleProof<'a> {
    /// Sizes that the proof covers, from the current one on, ascending.
    pub sizes: Vec<usize>,
    /// Radius at one of the sizes.
    pub radius: Box<dyn Fn(usize) -> f64 + 'a>,
}

/// Terms of a proof for the output of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProofTerms {
    /// The row's own part of the failure probability.
    pub delta: f64,
    /// The size at the first check.
    pub base: usize,
    /// The largest size that may be checked.
    pub limit: usize,
    /// The logit that the sample's exponentials are relative to.
    pub shift: f64,
}
