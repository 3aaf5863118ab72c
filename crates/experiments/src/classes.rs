//! Whether a trace knows what a pipeline needs to know of its tokens.

use std::sync::Arc;

use vattention_core::PipelineConfig;
use vattention_trace::Trace;

use crate::{Error, Result};

/// Refuses a trace without the [classes](vattention_core::TokenClass) of tokens that a pipeline needs at one of its layers.
///
/// # Errors
/// [`Error::Trace`], with the tensor that is missing.
pub fn expect_classes(pipeline: &Arc<PipelineConfig>, trace: &Trace) -> Result<()> {
    let mut layers = trace.layers().filter(|(_, layout)| !layout.classes);
    match layers.find_map(|(number, _)| Some((number, pipeline.needs_classes_at(number)?))) {
        None => Ok(()),
        Some((number, selector)) => {
            let reason = format!(
                "no tensor `layers.{number}.classes`, and `{selector}` needs to know which tokens are special or \
                 punctuation; expected a trace that says so, as `vattention capture` writes"
            );
            Err(Error::trace(trace.path(), reason))
        }
    }
}
