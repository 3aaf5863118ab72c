//! For those who write a selector, a sampler or an estimator: one file, which [`register!`] gives a name.
//!
//! - A **selector** picks tokens for certain: [`SelectorConfig`] is what a file says, [`Selector`] the worker of one KV head, which
//!   adds to the [`Picks`] of a [`Row`].
//! - A **sampler** draws from the others: [`SamplerConfig`], [`Sampler`], and the [`Design`] of one step.
//! - An **estimator** says how far a sample may be off: [`BudgetEstimator`], from [`SampleStats`] a [`Radius`].

pub use vattention_core::{
    ALLOWANCE, Assumption, Assumptions, Assurance, Attended, AutoSize, Budget, BudgetEstimator,
    Component, ComponentKind, Demand, Design, Draws, Error, Fraction, Kind, Needs, NewTokens,
    Order, Picks, Promise, PromptQueries, ProofGoal, Proved, Radius, Rank, Result, Row,
    SampleStats, Sampler, SamplerConfig, Sampling, Scope, Score, Selector, SelectorConfig, Site,
    Size, Step, Stream, Target, Tokens, Tunable, TunableDemand, Uniform, Unseen, components,
    default_base, inventory, register, registry_faults, schemars, searched_budget, typetag,
};
