//! Options of the engine.

use std::path::PathBuf;
use std::sync::Arc;

use vattention_core::{PipelineConfig, Storage};

/// Options of the engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Pipelines that jobs name by index.
    pub pipelines: Vec<Arc<PipelineConfig>>,
    /// Largest number of sequences that run together, at least 1.
    pub max_sequences: usize,
    /// Largest number of jobs that wait.
    pub max_queue: usize,
    /// Memory for keys and values of all running sequences, in bytes. A sequence reserves the
    /// memory of its whole length before it runs.
    pub sequence_bytes: u64,
    /// Memory of the prefix cache, in bytes; 0 turns it off.
    pub cache_bytes: u64,
    /// Folder of the prefix cache's files, whose sizes have the same limit in sum.
    pub cache_dir: Option<PathBuf>,
    /// Number type of stored keys and values.
    pub storage: Storage,
    /// Number of tokens of a block of a prompt, at least 1.
    pub block: usize,
}
