//! The engine: one thread that runs all sequences of a model, and its interface.
//!
//! Handlers of HTTP requests submit [`Job`]s through an [`EngineHandle`] and receive [`Event`]s.

mod block_files;
mod handle;
mod options;
mod prefix_cache;
mod scheduler;
mod sequence;
mod tally;

use tokio::sync::mpsc::UnboundedSender;
use vattention_llm::{GenerationParams, Stop, TokenLogprob};

pub use handle::EngineHandle;
pub use options::EngineOptions;
pub use scheduler::start_engine;

/// Work of one sequence.
#[derive(Debug)]
pub struct Job {
    /// Index of the pipeline in the engine's list of pipelines.
    pub pipeline: usize,
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Number of tokens of the prompt that dense attention reads, at least 1; the pipeline reads
    /// the rest, token by token. `None` means the whole prompt.
    pub dense_prefix: Option<usize>,
    /// Sampling, limits and stops. `max_tokens` may be 0, for the scores of the prompt alone.
    pub params: GenerationParams,
    /// Number of alternatives of each token of the prompt to score; `None` scores none.
    pub prompt_logprobs: Option<usize>,
    /// True if token events carry a [`StepReport`].
    pub reports: bool,
    /// Receiver of events. If it is closed, the job is cancelled within one step.
    pub events: UnboundedSender<Event>,
}

/// Message from the engine about a job. The last one is `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// Scores of the prompt's tokens from the second on, once, before the first token.
    PromptScores(Vec<TokenLogprob>),
    /// A generated token.
    Token(TokenEvent),
    /// The job ended as requested.
    Finished(Finished),
    /// The job cannot continue.
    Failed(JobError),
}

/// A generated token, and the text that it completes. A token that ends the text has no text.
#[derive(Clone, Debug)]
pub struct TokenEvent {
    /// The token with its log-probability; its alternatives if the parameters request some.
    pub choice: TokenLogprob,
    /// Text that is complete and cannot become a part of a stop string; often empty.
    pub text: String,
    /// Report of the step whose logits the token was chosen from; `None` for the first token after
    /// a dense prompt, and if the job does not request reports.
    pub report: Option<StepReport>,
}

/// Density, error bars and promises of one decode step.
#[derive(Clone, Debug, serde::Serialize)]
pub struct StepReport {
    /// Share of the visible tokens that each KV head read, `[layers][kv_heads]`.
    pub density: Vec<Vec<f32>>,
    /// Largest error bar of each KV head's query heads, `[layers][kv_heads]`; `None` if a row has
    /// none.
    pub bar: Vec<Vec<Option<f32>>>,
    /// Share of the rows with a promise whose certificate states that it held; `None` if no row
    /// has a promise.
    pub held: Option<f32>,
}

/// End of a job.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Rest of the text, which follows the texts of the token events.
    pub text: String,
    /// Reason why the generation ended.
    pub stop: Stop,
    /// Numbers of tokens and what attention read.
    pub usage: JobUsage,
}

/// Numbers of tokens of a job, and what its attention read.
#[derive(Clone, Debug, Default)]
pub struct JobUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt whose keys and values came from the prefix cache.
    pub cached_tokens: usize,
    /// Generated tokens.
    pub completion_tokens: usize,
    /// Mean density over layers, KV heads and steps with the pipeline; `None` without such steps.
    pub read: Option<f64>,
    /// Share of the rows with a promise whose certificate states that it held; `None` if no row
    /// has a promise.
    pub held: Option<f64>,
    /// Largest error bar of a row; `None` if no row has one.
    pub largest_bar: Option<f64>,
    /// Bytes of the indexes of selectors and samplers at the end.
    pub index_bytes: usize,
}

/// Reason why a job ended without a result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JobError {
    /// The model or its attention refuses the job's input.
    #[error("{0}")]
    Input(String),
    /// The engine failed, such as by a panic.
    #[error("{0}")]
    Internal(String),
    /// The server shuts down before the job is finished.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Reason why a job was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full; the client may try again.
    #[error("the queue is full")]
    QueueFull,
    /// Keys and values of the job alone exceed the memory for sequences.
    #[error("the sequence needs {needed} bytes for keys and values; {limit} are available")]
    TooLarge {
        /// Bytes that the sequence needs.
        needed: u64,
        /// Bytes for all sequences together.
        limit: u64,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Counters and gauges of the engine since its start.
#[derive(Clone, Debug, Default)]
pub struct EngineMetrics {
    /// Jobs that wait for a place.
    pub queued: usize,
    /// Sequences that are read or generated.
    pub running: usize,
    /// Tokens of prompts that were read, without those from the cache.
    pub prompt_tokens: u64,
    /// Tokens of prompts whose keys and values came from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub generated_tokens: u64,
    /// Jobs that were cancelled because their client disconnected.
    pub cancelled: u64,
    /// Bytes of the prefix cache.
    pub cache_bytes: u64,
    /// Blocks in the prefix cache.
    pub cache_blocks: usize,
    /// Bytes reserved for keys and values of running sequences.
    pub reserved_bytes: u64,
    /// For each pipeline, in the engine's order.
    pub pipelines: Vec<PipelineMetrics>,
}

/// Sums over the decode steps of one pipeline.
#[derive(Clone, Debug, Default)]
pub struct PipelineMetrics {
    /// Steps of sequences.
    pub steps: u64,
    /// Sum of the steps' densities, each the mean over layers and KV heads.
    pub density_sum: f64,
    /// Rows (query heads of all layers and steps) with a promise.
    pub rows: u64,
    /// Rows with a promise whose certificate states that the promise held.
    pub held_rows: u64,
    /// Rows with an error bar.
    pub barred_rows: u64,
    /// Sum of these error bars.
    pub bar_sum: f64,
}
