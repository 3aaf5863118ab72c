//! A step of several sequences.

use vattention::{BatchEntry, Output, Shape};

use crate::arguments::borrow_visible;
use crate::array::{borrow_array, va_array};
use crate::attention::{ATTENTIONS, va_attention};
use crate::border::run_call;
use crate::output::{OutputBuffers, va_output};
use crate::pointers::{borrow, check_pointer};
use crate::status::{CallError, va_status};
use crate::workers::{va_workers, workers_from};

/// Arguments of a batch.
struct BatchArguments<'a> {
    attentions: &'a [*mut va_attention],
    queries: &'a [*const va_array],
    /// Limits of each sequence; `None` means all tokens.
    visible: Option<&'a [*const usize]>,
    outputs: &'a [*const va_output],
}

/// Computes a step of `count` sequences in parallel: va_attention_attend with `attentions[i]`,
/// `queries[i]`, `visible[i]` and `outputs[i]`. `visible` may be NULL, as may each `visible[i]`.
/// Results equal those of single calls.
///
/// `statuses` `[count]`, or NULL, receives the status of each sequence. `workers` process the
/// sequences; NULL means all cores.
///
/// Errors: the errors of va_attention_attend, with the sequence's index in the message. If an
/// argument is wrong, nothing is computed and all statuses are that of the call. If sequences fail
/// later, the call returns the first status that is not VA_OK, and the others are computed.
///
/// Thread safety: any thread; a handle that another call uses, or that is twice in the batch, is
/// VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attend_batch(
    count: usize,
    attentions: *const *mut va_attention,
    queries: *const *const va_array,
    visible: *const *const usize,
    outputs: *const *const va_output,
    statuses: *mut va_status,
    workers: *const va_workers,
) -> va_status {
    let mut computed = false;
    let status = run_call(|| {
        if count > 0 && !statuses.is_null() {
            check_pointer(statuses, "statuses")?;
        }
        // SAFETY: the caller vouches for the arrays.
        let arguments = unsafe {
            BatchArguments {
                attentions: borrow(attentions, count, "attentions")?,
                queries: borrow(queries, count, "queries")?,
                visible: if visible.is_null() {
                    None
                } else {
                    Some(borrow(visible, count, "visible")?)
                },
                outputs: borrow(outputs, count, "outputs")?,
            }
        };
        // SAFETY: the caller vouches for the workers.
        let workers = unsafe { workers_from(workers, "workers") }?;
        // SAFETY: the caller vouches for the pointers in the arrays.
        let results =
            unsafe { attend(&arguments, |batch| workers.map(batch, BatchEntry::attend)) }?;
        computed = true;
        let mut first = Ok(());
        for (i, result) in results.into_iter().enumerate() {
            let status = result.as_ref().err().map_or(va_status::VA_OK, |error| error.status);
            if !statuses.is_null() {
                // SAFETY: the pointer is checked, and there are `count` statuses.
                unsafe { statuses.add(i).write(status) };
            }
            first = first.and(result);
        }
        first
    });
    if !computed && !statuses.is_null() && statuses.is_aligned() {
        for i in 0..count {
            // SAFETY: the pointer is checked, and there are `count` statuses.
            unsafe { statuses.add(i).write(status) };
        }
    }
    status
}

/// Locks the sequences, computes a step of each with `compute`, and writes the outputs.
///
/// # Safety
/// The pointers in the arrays are those of valid calls of `va_attention_attend`.
unsafe fn attend(
    arguments: &BatchArguments<'_>,
    compute: impl FnOnce(Vec<BatchEntry<'_>>) -> Vec<vattention::Result<Output>>,
) -> Result<Vec<Result<(), CallError>>, CallError> {
    let mut objects = Vec::new();
    for (i, &attention) in arguments.attentions.iter().enumerate() {
        objects.push(ATTENTIONS.find(attention).map_err(|error| at_index(error, i))?);
    }
    let mut locked = Vec::new();
    for (i, object) in objects.iter().enumerate() {
        locked.push(ATTENTIONS.lock(object).map_err(|error| at_index(error, i))?);
    }
    let (mut queries, mut buffers) = (Vec::new(), Vec::new());
    for (i, object) in locked.iter().enumerate() {
        let at_index = |error| at_index(error, i);
        // SAFETY: the caller vouches for the array.
        let array = unsafe { borrow_array(arguments.queries[i], "queries") }.map_err(at_index)?;
        let Shape { query_heads, value_dim, .. } = object.shape;
        let shape = [query_heads, array.shape()[1], value_dim];
        // SAFETY: the caller vouches for the buffers.
        let buffer = unsafe { OutputBuffers::read(arguments.outputs[i], shape) };
        buffers.push(buffer.map_err(at_index)?);
        queries.push(array.to_f32());
    }
    let mut batch = Vec::new();
    for (i, object) in locked.iter_mut().enumerate() {
        let visible = arguments.visible.map_or(std::ptr::null(), |visible| visible[i]);
        // SAFETY: the caller passes a limit for each query.
        let visible = unsafe { borrow_visible(visible, queries[i].dim().1) };
        let visible = visible.map_err(|error| at_index(error, i))?;
        let queries = queries[i].view();
        batch.push(BatchEntry { attention: &mut *object.attention, queries, visible });
    }
    let outputs = compute(batch);
    let write = |(i, output): (usize, vattention::Result<Output>)| {
        let output = output.map_err(|error| at_index(error.into(), i))?;
        // SAFETY: the caller vouches for the buffers.
        unsafe { buffers[i].write(&output) };
        Ok(())
    };
    Ok(outputs.into_iter().enumerate().map(write).collect())
}

/// Adds the index of a sequence to an error.
fn at_index(error: CallError, index: usize) -> CallError {
    CallError { message: format!("sequence {index} of the batch: {}", error.message), ..error }
}
