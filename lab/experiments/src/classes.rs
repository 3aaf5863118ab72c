//! Check that a trace contains the token classes that a pipeline needs.

use std::sync::Arc;

use vattention_core::PipelineConfig;
use vattention_trace::{Layout, Trace};

use crate::{Error, Result};

/// Refuses a pipeline that needs the [classes](vattention_core::TokenClass) of tokens at one of
/// these layers, where the trace contains no classes.
///
/// # Errors
/// [`Error::Classes`].
pub fn expect_classes(
    pipeline: &Arc<PipelineConfig>,
    trace: &Trace,
    layers: &[(usize, Layout)],
) -> Result<()> {
    let mut unclassed = layers.iter().filter(|(_, layout)| !layout.classes);
    match unclassed.find_map(|(number, _)| Some((*number, pipeline.needs_classes_at(*number)?))) {
        None => Ok(()),
        Some((layer, selector)) => {
            Err(Error::Classes { trace: trace.path().into(), layer, selector: selector.into() })
        }
    }
}
