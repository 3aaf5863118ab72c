//! HTTP server of the OpenAI API, which decodes with attention pipelines.
//!
//! A [`Server`] serves one model. The model has one id for each pipeline; the pipelines run in the
//! [engine](start_engine), which decodes all sequences together. Requests and responses are those
//! of OpenAI's API with a few fields of vLLM's; `usage.vattention` reports the share of the tokens
//! that attention read.

mod answer;
mod body;
mod chat;
mod clock;
mod completions;
mod engine;
mod error;
mod fields;
mod guard;
mod harmless;
mod jobs;
mod keys;
mod messages;
mod metrics;
mod model_list;
mod options;
mod origin;
mod page;
mod params;
mod prepare;
mod random;
mod request_counts;
mod router;
mod served;
mod server;
mod state;
mod structure;
mod token_text;
mod tokenizer_api;
mod usage;

pub use engine::{
    EngineHandle, EngineMetrics, EngineOptions, Event, Finished, Job, JobError, JobUsage,
    PipelineMetrics, StepReport, SubmitError, TokenEvent, start_engine,
};
pub use keys::ApiKeys;
pub use options::ServerOptions;
pub use router::build_router;
pub use served::{DENSE, ModelId, ServedModel, list_ids};
pub use server::Server;
