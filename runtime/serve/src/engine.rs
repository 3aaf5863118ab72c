//! The engine: one thread that runs all sequences of a model, and its interface.
//!
//! Handlers of HTTP requests submit [`Job`]s through an [`EngineHandle`] and receive [`Event`]s.

mod block_files;
mod file_worker;
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

/// Request to generate one sequence.
#[derive(Debug)]
pub struct Job {
    /// Index of the pipeline in the engine's list of pipelines.
    pub pipeline: usize,
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Number of prompt tokens that dense attention prefills, at least 1. The pipeline decodes the
    /// remaining prompt tokens, one per step. `None` means the whole prompt.
    pub dense_prefix: Option<usize>,
    /// Sampling parameters, token limit and stop conditions. A job whose `max_tokens` is 0 only
    /// scores its prompt.
    pub params: GenerationParams,
    /// Number of alternatives to report for each prompt token; `None` skips the scores of the
    /// prompt.
    pub prompt_logprobs: Option<usize>,
    /// True if token events carry a [`StepReport`].
    pub reports: bool,
    /// Receiver of events. If it is closed, the job is cancelled within one step.
    pub events: UnboundedSender<Event>,
}

/// Message from the engine about a job. The last one is `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// Scores of the prompt tokens from the second one on. The event is sent once, before the first
    /// token, if the job requests it.
    PromptScores(Vec<TokenLogprob>),
    /// A generated token.
    Token(TokenEvent),
    /// The job ended as requested.
    Finished(Finished),
    /// The job cannot continue.
    Failed(JobError),
}

/// Generated token, and the text that it completes. A token that ends the generation has no text.
#[derive(Clone, Debug)]
pub struct TokenEvent {
    /// Token with its log-probability, and the requested number of alternatives.
    pub choice: TokenLogprob,
    /// Text that consists of whole characters and cannot become a part of a stop string; often
    /// empty.
    pub text: String,
    /// Report of the decode step that computed the token's logits. `None` if the job does not
    /// request reports, or if the logits are those of the dense prefill.
    pub report: Option<StepReport>,
}

/// Density, error bars and promises of one decode step.
#[derive(Clone, Debug, serde::Serialize)]
pub struct StepReport {
    /// Share of the visible tokens that each KV head read, `[layers][kv_heads]`; 1 in sliding
    /// layers, which read all tokens of their windows.
    pub density: Vec<Vec<f32>>,
    /// Largest error bar among the query heads of each KV head, `[layers][kv_heads]`; `None` if one
    /// of these query heads has no error bar, 0 in sliding layers.
    pub bar: Vec<Vec<Option<f32>>>,
    /// Share of the rows with a promise whose certificate states that it held; `None` if no row
    /// has a promise.
    pub held: Option<f32>,
}

/// End of a job.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Remaining text after the texts of all token events.
    pub text: String,
    /// Reason why the generation ended.
    pub stop: Stop,
    /// Token counts, and statistics of the attention.
    pub usage: JobUsage,
}

/// Token counts of a job, and statistics of its attention.
#[derive(Clone, Debug, Default)]
pub struct JobUsage {
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of prompt tokens whose keys and values were copied from the prefix cache.
    pub cached_tokens: usize,
    /// Number of generated tokens.
    pub completion_tokens: usize,
    /// Mean density over full layers, KV heads and decode steps; `None` if there was no decode
    /// step.
    pub read: Option<f64>,
    /// Share of the rows with a promise whose certificate states that it held; `None` if no row
    /// has a promise.
    pub held: Option<f64>,
    /// Largest error bar of a row; `None` if no row has one.
    pub largest_bar: Option<f64>,
    /// Size of the selectors' and samplers' indexes at the end of the job, in bytes.
    pub index_bytes: usize,
}

/// Reason why a job ended without a result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JobError {
    /// The model refuses the job's input, such as a token or a parameter.
    #[error("{0}")]
    Input(String),
    /// The grammar is invalid or not supported, or no token of the vocabulary continues the text.
    #[error("{0}")]
    Grammar(String),
    /// The engine failed, for example because it panicked.
    #[error("{0}")]
    Internal(String),
    /// The server shuts down before the job is finished.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl From<vattention_llm::Error> for JobError {
    /// Converts an error of the model. Invalid input is an error of the client; all others are
    /// errors of the server.
    fn from(error: vattention_llm::Error) -> Self {
        match error {
            vattention_llm::Error::Grammar { reason, .. } => Self::Grammar(reason),
            vattention_llm::Error::Input { .. } => Self::Input(error.to_string()),
            other => Self::Internal(other.to_string()),
        }
    }
}

/// Reason why a job was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full; the client may try again.
    #[error("the queue is full")]
    QueueFull,
    /// The keys and values of this job alone exceed the memory for sequences.
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

/// Counters of the engine since its start, and its current gauges.
#[derive(Clone, Debug, Default)]
pub struct EngineMetrics {
    /// Number of queued jobs.
    pub queued: usize,
    /// Number of sequences in prefill or decode.
    pub running: usize,
    /// Number of prefilled tokens, without the tokens that were copied from the prefix cache.
    pub prompt_tokens: u64,
    /// Number of prompt tokens whose keys and values were copied from the prefix cache.
    pub cached_tokens: u64,
    /// Number of generated tokens.
    pub generated_tokens: u64,
    /// Number of jobs that were cancelled because their client disconnected.
    pub cancelled: u64,
    /// Size of the prefix cache in memory, in bytes.
    pub cache_bytes: u64,
    /// Number of blocks of the prefix cache in memory.
    pub cache_blocks: usize,
    /// Bytes reserved for keys and values of running sequences.
    pub reserved_bytes: u64,
    /// Metrics of each pipeline, in the order of [`EngineOptions::pipelines`].
    pub pipelines: Vec<PipelineMetrics>,
}

/// Sums over the decode steps of one pipeline.
#[derive(Clone, Debug, Default)]
pub struct PipelineMetrics {
    /// Number of decode steps; a batch counts once per sequence.
    pub steps: u64,
    /// Sum of the steps' densities, each the mean over layers and KV heads.
    pub density_sum: f64,
    /// Number of rows with a promise. A row is one query head of one layer in one step.
    pub rows: u64,
    /// Number of rows with a promise whose certificate states that the promise held.
    pub held_rows: u64,
    /// Number of rows with an error bar.
    pub barred_rows: u64,
    /// Sum of the error bars of these rows.
    pub bar_sum: f64,
}
