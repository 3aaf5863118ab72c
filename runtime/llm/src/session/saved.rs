//! Sessions on disk, which continue without another prefill of a long document.
//!
//! A file is in the safetensors format, so other programs can read it. The file contains the
//! tokens, the logits after the last one, each layer's keys and values as the backend stores them,
//! and the state of the pipeline. Once a step was made, sliding layers have only the keys and
//! values of their windows. The last tensor is the SHA-256 digest of all bytes before it.

mod checks;
mod file;
mod header;
mod numbers;
mod restore;
mod write;

pub use file::SavedSession;
pub use write::SessionContent;

use crate::PrefillOptions;

/// Model and pipeline that computed a session. A saved session continues only with the same origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOrigin {
    /// [Digest](crate::model_digest) of the model.
    pub model: String,
    /// Pipeline file with all settings. A session that has made no step continues with any
    /// pipeline.
    pub pipeline: String,
}

/// Describes the options of a prefill, on which keys and values depend.
fn describe_prefill(options: &PrefillOptions) -> String {
    let PrefillOptions { block, observed, strategy } = options;
    format!("{strategy} in blocks of {block} tokens, with {observed} observed queries")
}
