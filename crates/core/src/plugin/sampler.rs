//! The sampler plug-in, which draws tokens from the residual.

use std::any::Any;
use std::fmt::Debug;

use dyn_clone::DynClone;

use crate::{
    Result, Size,
    plugin::NewTokens,
    sample::{MissBounds, Sample, Stratification},
    step::{Picks, Row, Site, Stream, Tokens},
};

/// The `[sampler]` table of a pipeline file: parameters without state. The default `type` is
/// `uniform`.
#[typetag::serde(tag = "type", default_variant = "uniform")]
pub trait SamplerConfig: Any + Debug + DynClone + Send + Sync {
    /// Builds the sampler of one KV head, without any tokens yet.
    ///
    /// # Errors
    /// Returns [`Error::Build`](crate::Error::Build) if the sampler does not support the site's
    /// shape.
    fn build(&self, site: &Site) -> Result<Box<dyn Sampler>>;

    /// Size of a sample at its first check.
    fn base(&self) -> Size;

    /// Evidence that a sample provides of its own error.
    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Variances
    }

    /// Returns true if draws are uniform and without replacement, in the
    /// [order](crate::sample::Order) that the stream keys.
    fn is_uniform(&self) -> bool {
        false
    }

    /// Returns true if query heads that read one token list can share a sample.
    fn shares(&self) -> bool {
        true
    }

    /// Returns true if an orthogonal rotation of queries and keys changes the probabilities of
    /// tokens only by rounding, or by another draw of random directions; see
    /// [`SelectorConfig::is_rotation_invariant`](crate::SelectorConfig::is_rotation_invariant).
    fn is_rotation_invariant(&self) -> bool {
        false
    }

    /// Returns true if the sampler needs the [scores](Picks::scores) of the selectors.
    fn needs_scores(&self) -> bool {
        false
    }
}

dyn_clone::clone_trait_object!(SamplerConfig);

/// Evidence of a sample's error, which samplers provide and estimators need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SampleEvidence {
    /// No evidence, because draws depend on each other. Such a sample cannot grow, and no estimator
    /// can be used.
    Nothing,
    /// Variances of the estimated sums, at the size of the sample and at any larger one.
    Variances,
    /// Upper bound on the weights of the tokens that a uniform sample is drawn from, which
    /// selectors [prove](crate::plugin::SelectorConfig::bounds_residual).
    Range,
    /// A theorem for finite samples. For uniform samples the theorem needs only `Range`; other
    /// designs provide a [proof](Design::proof) for the output.
    Proof,
}

/// Draws tokens for the queries of one KV head of one layer of one sequence. A clone is a fork.
pub trait Sampler: DynClone + Send + Sync {
    /// Indexes new tokens, in order, as they are stored.
    ///
    /// Later rows may see fewer tokens. Their draws must not depend on tokens that they do not see.
    fn append(&mut self, new: &NewTokens<'_>) {
        let _ = new;
    }

    /// Returns true if the sampler can [remove](Self::truncate) its newest tokens in place.
    fn can_truncate(&self) -> bool {
        false
    }

    /// Removes all but the first tokens, whose keys are `keys`, `[tokens, head_dim]`. Later draws
    /// must be those of a sampler that has never received the other tokens. It is called only if
    /// [`can_truncate`](Self::can_truncate) returns true, after every pass that checks drafts: its
    /// cost should not grow with the sequence.
    fn truncate(&mut self, keys: &Tokens<'_>) {
        let _ = keys;
    }

    /// Reason why other sequences cannot use this sampler's index of tokens that they have in
    /// common, like [`Selector::sharing_obstacle`](crate::plugin::Selector::sharing_obstacle).
    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("has an index that serves its own sequence only")
    }

    /// Moves the index to memory that later clones share, like
    /// [`Selector::share`](crate::plugin::Selector::share).
    fn share(&mut self) {}

    /// Size in bytes of the parts of its index that grow with the number of tokens. Memory that
    /// `n` clones share counts for each of them as an `n`-th.
    fn index_bytes(&self) -> usize {
        0
    }

    /// Returns the design that samples the residual of one token list. `readers` are the rows that
    /// read the list, at least one, all of the same step. `picks` are always read, and `stream`
    /// provides the list's random numbers.
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

/// A sampling design for the residual of one token list, the `n_s` tokens that no selector picked.
///
/// The size of a sample is the expected number of drawn tokens. A total `Σ x` over the residual is
/// estimated by `Σ x / π` over the sample, where π is the inclusion probability (Horvitz-Thompson
/// estimator). The estimate is unbiased.
pub trait Design {
    /// Grows the sample to a larger size and appends the new tokens to `out`. Drawn tokens stay in
    /// the sample. At size `n_s` the sample is the whole residual.
    fn extend(&mut self, size: usize, out: &mut Vec<u32>);

    /// Inclusion probability π of each token drawn so far, in draw order, in (0, 1].
    fn probabilities(&self) -> Vec<f64>;

    /// Factor φ of each token drawn so far, in draw order, for the current or a larger size. On
    /// average, `Σ φ |x − m|²` is at least the variance of the estimated total at that size, where
    /// `m` is the centre of the token's [stratum](Self::strata), or 0 without strata
    /// (docs/guarantees.md, eq. 18).
    ///
    /// For uniform samples of `b` tokens, φ is `n_s² (1/size − 1/n_s) / (b − 1)`; for independent
    /// draws `(1/π(size) − 1) / π`; and within strata `N_h² (1/n_h(size) − 1/N_h)` divided by the
    /// stratum's [degrees of freedom](Stratification::degrees_of_freedom).
    fn factors(&self, size: usize) -> Vec<f64>;

    /// Strata of the tokens drawn so far, if tokens are drawn without replacement within strata.
    /// `None` if each token is drawn independently of the others.
    fn strata(&self) -> Option<Stratification> {
        None
    }

    /// Bounds on the weights that a sample of `size` tokens may miss, relative to the logit
    /// `shift`. `reader` is the index of a query head among those that read the list.
    fn unseen(&self, reader: usize, size: usize, shift: f64) -> Option<MissBounds> {
        let _ = (reader, size, shift);
        None
    }

    /// Radii for the output of query head `reader` that a theorem for finite samples proves. At the
    /// current size the radius follows from the `sample`; at larger sizes it is predicted.
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

/// Relative errors that, by a theorem, are exceeded with probability at most delta.
#[allow(missing_debug_implementations)]
pub struct SampleProof<'a> {
    /// Sizes that the proof covers, from the current one on, ascending.
    pub sizes: Vec<usize>,
    /// Function that returns the radius at one of the sizes.
    pub radius: Box<dyn Fn(usize) -> f64 + 'a>,
    /// Norm of the output that the sample estimates.
    pub output_norm: f64,
}

/// Parameters of a proof for the output of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProofTerms {
    /// Failure probability of the row.
    pub delta: f64,
    /// Size at the first check.
    pub base: usize,
    /// Largest size that may be checked.
    pub limit: usize,
    /// Logit that the sample's exponentials are relative to.
    pub shift: f64,
}
