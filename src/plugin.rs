//! For those who write a selector, a sampler or an estimator: one file, which [`register!`] gives a name.
//!
//! - A **selector** picks tokens for certain: [`SelectorConfig`] is what a file says, [`Selector`] the worker of one KV head, which
//!   adds to the [`Picks`] of a [`Row`].
//! - A **sampler** draws from the others: [`SamplerConfig`], [`Sampler`], and the [`Design`] of one step.
//! - An **estimator** bounds a sample's error: [`Estimator`], from [`SampleStats`] a [`Radius`].
//!
//! What decides how much is read is told by `tunable`, so that a share of the tokens can be asked for. The crate `vattention-testkit` tests in a line each that a part obeys the laws of its kind;
//! `examples/custom_plugins` in the repository has one part of each kind, and `docs/embedding.md` how to make a crate of them.

pub use vattention_core::{
    Error, Estimator, Fraction, Goal, Kind, NewTokens, Picks, Promise, Result, Row, SampleStats,
    Sampler, SamplerConfig, Selector, SelectorConfig, ShareWithLeast, Site, Size, Step, Target,
    TokenClass, Tokens, inventory,
    pipeline::required_size,
    plugin::{
        Attended, Budget, Component, ComponentKind, Design, PromptQueries, ProofTerms, Radius,
        SampleEvidence, SampleProof, Schedule, Tunable, TunableGoal, Uniform, check_sizes,
        components, default_base, registry_faults,
    },
    promise::{Assumption, Assumptions, SampleGoal, Scope},
    register,
    sample::{ALLOWANCE, Draws, Order, Sample, Stratification, Uniforms, Unseen},
    schemars,
    step::{Rank, Score, Stream},
    typetag,
};
