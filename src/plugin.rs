//! For those who write a selector, a sampler or an estimator: one file, which [`register!`] gives a name.
//!
//! - A **selector** picks tokens for certain: [`SelectorConfig`] is what a file says, [`Selector`] the worker of one KV head, which
//!   adds to the [`Picks`] of a [`Row`].
//! - A **sampler** draws from the others: [`SamplerConfig`], [`Sampler`], and the [`Design`] of one step.
//! - An **estimator** says how far a sample may be off: [`BudgetEstimator`], from [`SampleStats`] a [`Radius`].
//!
//! What decides how much is read is told by `tunable`, so that a share of the tokens can be asked for. The crate `vattention-testkit` tests in a line each that a part obeys the laws of its kind;
//! `examples/custom_plugins` in the repository has one part of each kind, and `docs/plugins.md` how to make a crate of them.

pub use vattention_core::{
    AutoSize, BudgetEstimator, Demand, Error, Fraction, Kind, NewTokens, Picks, Promise, Result,
    Row, SampleStats, Sampler, SamplerConfig, Scope, Selector, SelectorConfig, ShareWithLeast,
    Site, Size, Step, Stream, Target, TokenClass, Tokens, inventory,
    plugin::{
        Assurance, Attended, Budget, Component, ComponentKind, Design, Needs, PromptQueries,
        ProofGoal, Proved, Radius, Tunable, TunableDemand, Uniform, components, default_base,
        registry_faults, searched_budget,
    },
    promise::{Assumption, Assumptions},
    register,
    sample::{ALLOWANCE, Draws, Order, Sample, Stratification, Uniforms, Unseen},
    schemars,
    step::{Rank, Sampling, Score},
    typetag,
};
