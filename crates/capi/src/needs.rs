//! Input that a pipeline needs besides keys, values and queries.

use vattention::backends::EngineHead;
use vattention::engine::Pipeline;

use crate::pointers::{read_struct, versioned_struct};
use crate::status::CallError;

/// Input that a pipeline needs besides keys, values and queries. Each field but `size` is 1 or 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct va_needs {
    /// sizeof(va_needs).
    pub size: usize,
    /// 1 if appended tokens must have classes.
    pub needs_classes: u32,
    /// 1 if the last queries of the prompt must be observed before the first step.
    pub needs_observe: u32,
    /// 1 if selectors learn from the attention weights of each step. The library passes these on
    /// by itself; each step then costs a pass over the tokens read, and tokens cannot be removed.
    pub needs_feedback: u32,
    /// 1 if the indexes can lose tokens, so that va_pipeline_truncate removes them.
    pub can_truncate: u32,
}

versioned_struct!(va_needs, can_truncate: u32);

impl From<&EngineHead> for va_needs {
    fn from(head: &EngineHead) -> Self {
        Self {
            size: size_of::<Self>(),
            needs_classes: head.needs_classes().into(),
            needs_observe: head.needs_prompt().into(),
            needs_feedback: head.needs_feedback().into(),
            can_truncate: head.can_truncate().into(),
        }
    }
}

/// Needs of a pipeline that has observed no prompt.
impl From<&Pipeline> for va_needs {
    fn from(pipeline: &Pipeline) -> Self {
        Self {
            size: size_of::<Self>(),
            needs_classes: pipeline.needs_classes().is_some().into(),
            needs_observe: pipeline.awaits_prompt().is_some().into(),
            needs_feedback: pipeline.needs_feedback().into(),
            can_truncate: pipeline.check_rewindable().is_ok().into(),
        }
    }
}

/// Writes needs, without a change of the size.
///
/// # Safety
/// A valid `needs` is valid for a write.
pub(crate) unsafe fn write_needs(needs: *mut va_needs, found: va_needs) -> Result<(), CallError> {
    // SAFETY: the caller vouches for the struct.
    let va_needs { size, .. } = unsafe { read_struct(needs, "needs") }?;
    // SAFETY: the struct has at least the fields of this version, the first one.
    unsafe { needs.write(va_needs { size, ..found }) };
    Ok(())
}
