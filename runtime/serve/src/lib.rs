//! HTTP server of the OpenAI API whose models decode by pipelines.

mod engine;

pub use engine::{
    EngineHandle, EngineMetrics, EngineOptions, Event, Finished, Job, JobError, JobUsage,
    PipelineMetrics, StepReport, SubmitError, TokenEvent, start_engine,
};
