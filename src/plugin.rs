//! For those who write a selector, a sampler or an estimator: one file, which [`register!`] gives a name.
//!
//! - A **selector** picks tokens for certain: [`SelectorConfig`] is what a file says, [`Selector`] the worker of one KV head, which
//!   adds to the [`Picks`] of a [`Row`].
//! - A **sampler** draws from the others: [`SamplerConfig`], [`Sampler`], and the [`Design`] of one step.
//! - An **estimator** says how far a sample may be off: [`BudgetEstimator`], from [`SampleStats`] a [`Radius`].
//!
//! What decides how much is read is told by `tunable`, so that a share of the tokens can be asked for. What devices know of parts
//! ([`SelectorOp`], [`ClosedForm`]) is never needed. The crate `vattention-testkit` tests in a line each that a part obeys the laws of its kind;
//! `examples/custom_plugins` in the repository has one part of each kind, and `docs/plugins.md` how to make a crate of them.

pub use vattention_core::{
    ALLOWANCE, Assumption, Assumptions, Assurance, Attended, Budget, BudgetEstimator, ClosedForm,
    Component, ComponentKind, Demand, Design, Draws, Error, Fraction, Kind, Needs, NewTokens,
    Order, Picks, Promise, PromptQueries, ProofGoal, Proved, Radius, Rank, Result, Row, Sample,
    SampleStats, Sampler, SamplerConfig, Scope, Score, Selector, SelectorConfig, SelectorOp,
    ShareWithLeast, Site, Size, Step, Stratification, Stream, Target, TokenClass, Tokens, Tunable,
    TunableDemand, Uniform, Uniforms, Unseen, components, default_base, inventory, register,
    registry_faults, schemars, searched_budget, typetag,
};
