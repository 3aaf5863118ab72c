//! For those who write a selector, a sampler or an estimator: one file, which [`register!`] gives a name.
//!
//! - A **selector** picks tokens for certain: [`SelectorConfig`] is what a file says, [`Selector`] the worker of one KV head, which
//!   adds to the [`Picks`] of a [`Row`].
//! - A **sampler** draws from the others: [`SamplerConfig`], [`Sampler`], and the [`Design`] of one step.
//! - An **estimator** bounds a sample's error: [`Estimator`], from [`SampleStats`] a [`Radius`].
//!
//! What decides how much is read is told by `tunable`, so that a share of the tokens can be asked for. What devices know of parts
//! ([`SelectorOp`], [`ClosedForm`]) is never needed. The crate `vattention-testkit` tests in a line each that a part obeys the laws of its kind;
//! `examples/custom_plugins` in the repository has one part of each kind, and `docs/plugins.md` how to make a crate of them.

pub use vattention_core::{
    ALLOWANCE, Assumption, Assumptions, Attended, Budget, ClosedForm, Component, ComponentKind,
    Design, Draws, Error, Estimator, Evidence, Fraction, Goal, Kind, NewTokens, Order, Picks,
    Promise, PromptQueries, ProofTerms, Radius, Rank, Result, Row, Sample, SampleGoal, SampleProof,
    SampleStats, Sampler, SamplerConfig, Schedule, Scope, Score, Selector, SelectorConfig,
    SelectorOp, ShareWithLeast, Site, Size, Step, Stratification, Stream, Target, TokenClass,
    Tokens, Tunable, TunableGoal, Uniform, Uniforms, Unseen, check_sizes, components, default_base,
    inventory, register, registry_faults, required_size, schemars, typetag,
};
