//! The plug-in traits: selectors, samplers and estimators, and their registry.

mod estimator;
mod registry;
mod sampler;
mod selector;
mod tunable;
mod uniform;

pub use estimator::{Budget, BudgetEstimator, Needs, Radius, searched_budget};
pub use registry::{Component, ComponentKind, components, registry_faults};
pub use sampler::{Assurance, Design, ProofGoal, Proved, Sampler, SamplerConfig};
pub use selector::{Attended, NewTokens, PromptQueries, Selector, SelectorConfig};
pub use tunable::{Tunable, TunableDemand};
pub use uniform::{Uniform, default_base};
