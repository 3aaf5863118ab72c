//! Interface for writing a selector, a sampler or an estimator: one file, registered by
//! [`register!`].
//!
//! - A **selector** picks tokens that are always read. [`SelectorConfig`] has the settings of a
//!   pipeline file; a [`Selector`] belongs to one KV head and adds to the [`Picks`] of a [`Row`].
//! - A **sampler** draws from the other tokens: [`SamplerConfig`], [`Sampler`], and the [`Design`]
//!   of one step.
//! - An **estimator** bounds the error of a sample: [`Estimator`] computes a [`Radius`] from
//!   [`SampleStats`].
//!
//! `tunable` returns the settings that control how many tokens are read, so that searches can vary
//! them. The crate `vattention-testkit` tests the laws of a plug-in's kind in one line.
//! `examples/custom_plugins` in the repository has a plug-in of each kind, and `docs/embedding.md`
//! explains how to build a crate of plug-ins.

pub use vattention_core::{
    Error, Estimator, Fraction, Goal, Kind, NewTokens, Picks, Promise, Result, Row, SampleStats,
    Sampler, SamplerConfig, Selector, SelectorConfig, ShareWithLeast, Site, Size, SoftmaxForm,
    Step, Target, TokenClass, Tokens, inventory,
    pipeline::required_size,
    plugin::{
        AttentionWeights, Budget, Component, ComponentKind, Design, PromptQueries, ProofTerms,
        Radius, SampleEvidence, SampleProof, Schedule, Tunable, TunableGoal, Uniform, check_sizes,
        components, default_base, registry_faults,
    },
    promise::{Assumption, Assumptions, ReferenceRows, SampleGoal, Scope},
    register,
    sample::{ALLOWANCE, Draws, MissBounds, Order, Sample, Stratification, Uniforms},
    schemars,
    step::{Rank, Score, Stream},
    typetag,
};
