//! The plug-in traits: selectors, samplers and estimators, and their registry.

mod estimator;
mod registry;
mod sampler;
mod selector;
mod tunable;
mod uniform;

pub use estimator::{Budget, Estimator, Radius, Schedule, check_sizes};
pub use registry::{Component, ComponentKind, components, registry_faults};
pub use sampler::{Design, ProofTerms, SampleEvidence, SampleProof, Sampler, SamplerConfig};
pub use selector::{AttentionWeights, NewTokens, PromptQueries, Selector, SelectorConfig};
pub use tunable::{Tunable, TunableGoal};
pub use uniform::{Uniform, default_base};
