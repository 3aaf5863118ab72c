//! Options of the engine.

use std::path::PathBuf;
use std::sync::Arc;

use vattention_core::{PipelineConfig, Storage};

/// Options of the engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Pipelines, from which jobs select by index.
    pub pipelines: Vec<Arc<PipelineConfig>>,
    /// Maximum number of running sequences, at least 1.
    pub max_sequences: usize,
    /// Maximum number of queued jobs.
    pub max_queue: usize,
    /// Memory for the keys and values of all running sequences, in bytes. A sequence reserves
    /// memory for its prompt and `max_tokens` before it starts.
    pub sequence_bytes: u64,
    /// Memory of the prefix cache, in bytes; 0 turns it off.
    pub cache_bytes: u64,
    /// Folder of the prefix cache's files; `None` caches in memory only. The total size of the
    /// files has the same limit as the memory.
    pub cache_dir: Option<PathBuf>,
    /// Text that identifies the model's files, such as their
    /// [digest](vattention_llm::model_digest). Cached blocks of other files are not used.
    pub cache_key: String,
    /// Number type of stored keys and values.
    pub storage: Storage,
    /// Number of tokens of a prompt block, at least 1. Prompts are prefilled and cached in blocks.
    pub block: usize,
    /// Function that the engine's thread calls each second without a job, for example to return
    /// freed memory to the operating system.
    pub when_idle: fn(),
}
