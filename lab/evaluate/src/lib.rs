//! Pipelines judged by what a model answers.
//!
//! Each case is read once, by dense attention or another prefill strategy; every pipeline goes on from there. While it answers,
//! each step's attention is compared with dense attention over the same keys and values.

mod answer_cache;
mod at_once;
mod collector;
mod density;
mod error;
mod evaluation;
mod observed;
mod record;
mod report;
mod settings;
mod talk;
mod weights;

pub use answer_cache::AnswerCache;
pub use density::DensityTexts;
pub use error::{Error, Result};
pub use evaluation::Evaluation;
pub use observed::{LayerAttended, ObservedBackend, Observer};
pub use record::{AttentionSummary, CaseAnswer, ErrorOf, OtherScore, Record, fingerprint};
pub use report::{
    EvaluationReport, PrefillResult, TaskScore, VariantResult, effective_cases, mean_of_counted,
};
pub use settings::{EvaluationSettings, Setup};
pub use talk::Talk;
pub use vattention_experiments::{Files, Variant};
pub use weights::LazyWeights;
