//! Evaluation of pipelines by the answers of a language model.
//!
//! The prompt of each case is read once, by dense attention or another prefill strategy; every
//! pipeline continues from there. During the answer, each step's attention can be compared with
//! dense attention over the same keys and values.

mod answer_cache;
mod collector;
mod density;
mod error;
mod evaluation;
mod groups;
mod observed;
mod parallel;
mod perplexity;
mod record;
mod report;
mod settings;
mod talk;
mod weights;

pub use answer_cache::AnswerCache;
pub use density::DensityTexts;
pub use error::{Error, Result};
pub use evaluation::Evaluation;
pub use groups::GroupScore;
pub use observed::{LayerAttention, ObservedBackend, Observer};
pub use perplexity::{
    PerplexityReport, PerplexityTest, PerplexityWindows, PipelinePerplexity, PipelineScores,
    WindowScores,
};
pub use record::{AttentionSummary, CaseAnswer, OtherScore, Record, RowErrorSummary, fingerprint};
pub use report::{
    EvaluationReport, PrefillResult, TaskScore, VariantResult, effective_cases, mean_of_counted,
};
pub use settings::{EvaluationSettings, Setup};
pub use talk::ChatPrompt;
pub use vattention_experiments::{FileDigests, Variant};
pub use weights::LazyWeights;
