//! Sequences that are kept after their tokens were indexed, so that a search over settings does not
//! index the same tokens for each value.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use vattention_core::{Attention, PipelineConfig, Result};

/// Limit on the size of the keys, values and indexes of sequences that a search keeps.
const MOST_BYTES: usize = 4 << 30;

/// A layer of a trace before its first step: the trace's path, the layer's number, and the number
/// of the step.
pub(crate) type LayerStart = (PathBuf, usize, usize);

/// For each layer of some traces, the sequence of the pipeline that indexed it last. By default,
/// none is kept.
#[derive(Default)]
pub(crate) struct IndexedLayers {
    kept: RefCell<HashMap<LayerStart, Box<dyn Attention>>>,
    /// Limit on the size of all kept sequences.
    most_bytes: usize,
}

impl IndexedLayers {
    /// Creates a collection that keeps sequences of a size of up to 4 GiB together.
    pub(crate) fn for_search() -> Self {
        Self { most_bytes: MOST_BYTES, ..Self::default() }
    }

    /// Starts a sequence of a pipeline: with the kept index, if the pipeline differs from that of
    /// the kept sequence only in settings on which no index depends, or else by `index`, whose
    /// sequence is then kept.
    ///
    /// # Errors
    /// If the sequence cannot be copied, and errors of `index`.
    pub(crate) fn start(
        &self,
        at: LayerStart,
        pipeline: &Arc<PipelineConfig>,
        index: impl FnOnce() -> Result<Box<dyn Attention>>,
    ) -> Result<Box<dyn Attention>> {
        let mut kept = self.kept.borrow_mut();
        if let Some(same) = kept.get(&at)
            && let Some(started) = same.fork_adjusted(pipeline)?
        {
            return Ok(started);
        }
        kept.remove(&at);
        let started = index()?;
        let bytes: usize = kept.values().chain([&started]).map(|it| size_in_bytes(&**it)).sum();
        if bytes <= self.most_bytes {
            kept.insert(at, started.fork(None)?);
        }
        Ok(started)
    }
}

fn size_in_bytes(attention: &dyn Attention) -> usize {
    attention.held_bytes() + attention.index_bytes()
}
