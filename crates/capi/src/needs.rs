//! Input that a pipeline needs besides keys, values and queries.

use vattention::backends::EngineHead;

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

/// Writes the needs of a KV head's pipeline.
///
/// # Safety
/// A valid `needs` is valid for a write.
pub(crate) unsafe fn write_needs(head: &EngineHead, needs: *mut va_needs) -> Result<(), CallError> {
    // SAFETY: the caller vouches for the struct.
    let va_needs { size, .. } = unsafe { read_struct(needs, "needs") }?;
    let written = va_needs {
        size,
        needs_classes: head.needs_classes().into(),
        needs_observe: head.needs_prompt().into(),
        needs_feedback: head.needs_feedback().into(),
        can_truncate: head.can_truncate().into(),
    };
    // SAFETY: the struct has at least the fields of this version, the first one.
    unsafe { needs.write(written) };
    Ok(())
}
